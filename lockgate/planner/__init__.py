"""What will run, and what it is worth: pure functions of a Job."""
