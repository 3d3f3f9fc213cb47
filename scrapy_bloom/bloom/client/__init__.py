"""Addresses, connections, time-outs, and the drivers that send the calls."""
