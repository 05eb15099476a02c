"""The command line: one file per group of commands, put together in main.py."""
