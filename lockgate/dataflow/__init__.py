"""What is asked: frozen descriptions of jobs, which need neither a JVM nor a broker."""
