"""What shows that a promise holds, and that the showing can fail."""
