"""Make a package that Spark's own submit can run on machines without Lockgate or the job."""
