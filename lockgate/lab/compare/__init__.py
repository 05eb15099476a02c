"""Run one job with each of its guarantees, over the same events with the same faults: cost and result."""
