"""How faults strike a running job: a process does it to itself at a point, or it comes from outside."""
