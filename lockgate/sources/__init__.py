"""Where events come from: one system a file."""
