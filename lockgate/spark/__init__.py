"""Everything that touches Spark: the session, the jars it needs, Java, and plans compiled to queries."""
