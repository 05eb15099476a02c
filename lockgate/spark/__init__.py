"""Everything that touches Spark: the session, its jars, Java, and plans compiled to queries."""
