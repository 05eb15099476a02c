"""How faults are done to a running job: some processes do them to themselves at a point, others come from outside."""
