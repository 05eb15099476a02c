"""Endpoints without a system of their own: sockets, sensors, memory and the console."""
