"""The show: the same events through Spark's own sink and through ours, and both killed while they run."""
