"""Files that are there whole or not at all: manifests say which files of a directory count."""
