"""What an operator sees of a running job: figures, where they are shown, and whether it is well."""
