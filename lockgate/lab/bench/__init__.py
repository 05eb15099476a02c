"""Measure what exactly-once costs on this machine: throughput, transactions, the memory of a task."""
