"""Where events come from, where results go: a folder for each system, and beside them what several systems share."""
