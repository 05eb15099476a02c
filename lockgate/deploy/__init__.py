"""Make what Spark's own submit needs to run a job on machines that know nothing of it."""
