"""What happens to the events of one key: pure logic, without Spark and without a clock of its own."""
