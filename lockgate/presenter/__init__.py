"""Answer a transaction within its deadline, with the scores that have arrived by then."""
