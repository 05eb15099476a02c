"""Was the guarantee kept? Checkers that share no code with the job."""
