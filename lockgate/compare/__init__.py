"""One job under all its guarantees, the same events and the same faults: what each costs, and what each is worth."""
