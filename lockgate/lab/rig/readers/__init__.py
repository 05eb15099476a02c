"""Who reads the outputs of a job under proof: one reader for each kind, and none of them asks the job."""
