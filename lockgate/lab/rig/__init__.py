"""Feed a job, start it, let faults strike, read what it delivers, and judge; every experiment uses this rig."""
