"""Readers of a job's outputs: one for each kind of output. None of them asks the job."""
