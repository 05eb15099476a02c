"""The life of a checkpoint from outside: look at it, verify it, copy it, put it back, shorten it."""
