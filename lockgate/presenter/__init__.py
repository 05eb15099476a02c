"""Answers for a transaction within its deadline, with the scores that are there by then."""
