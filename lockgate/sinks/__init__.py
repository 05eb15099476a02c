"""Where results go: one system a file."""
