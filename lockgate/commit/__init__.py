"""How an epoch becomes visible once."""
