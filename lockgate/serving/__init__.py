"""How the ports of a job take connections: limits for strangers, a secret for workers, own names for browsers."""
