"""Figures for Prometheus, at an address of the driver."""
