"""What exactly-once costs, measured on this machine: throughput, the price of a transaction, the memory of a task."""
