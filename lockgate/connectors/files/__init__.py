"""Files that are visible as a whole or not at all: manifests say which files of a directory count."""
