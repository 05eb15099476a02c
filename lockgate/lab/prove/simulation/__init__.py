"""The commit protocol under schedules of crashes, delays and rivals, each made from one seed; docs/SIMULATION.md."""
