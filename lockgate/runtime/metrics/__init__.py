"""What an operator sees of a running job: its figures, the places that show them, and its health."""
