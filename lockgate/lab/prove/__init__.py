"""Show that a promise holds, and that this check can fail."""
