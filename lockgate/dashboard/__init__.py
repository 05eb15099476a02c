"""What jobs give, on a page in a browser; it shows, and decides nothing."""
