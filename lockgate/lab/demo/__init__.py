"""The show: the same events through Spark's own sink and through ours, and kills of both while they run."""
