"""What a driver needs before Spark starts: Java, jars, compiled classes and class archives."""
