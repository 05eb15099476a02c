"""What Lockgate says to Kafka itself, beside Spark's connector."""
