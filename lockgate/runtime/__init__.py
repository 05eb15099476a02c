"""How a job runs: epochs, checkpoints, progress, and the end."""
