"""Show the rows of jobs on a page in a browser; nothing here decides anything."""
