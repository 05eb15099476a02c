"""A guarantee is proven by killing things: what a job is given, where it runs meanwhile, and what is believed."""
