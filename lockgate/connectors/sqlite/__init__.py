"""SQLite: a file on the driver's disk, with the ledger in the same transaction as the rows."""
