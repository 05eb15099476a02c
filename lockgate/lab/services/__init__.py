"""Real local services for development, tests and proofs: Kafka and PostgreSQL, without root or containers."""
