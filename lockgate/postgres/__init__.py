"""PostgreSQL: connections and what their errors mean, tables, rows on their way into them, and the ledger."""
