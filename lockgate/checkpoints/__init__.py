"""Manage a checkpoint from outside: inspect it, verify it, copy it, restore it, clean it up."""
