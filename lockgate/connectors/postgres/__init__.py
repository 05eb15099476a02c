"""PostgreSQL: connections and what their errors mean, tables, the way of rows into them, and the ledger."""
