"""Deterministic simulation: many crawls of the real code, whose every step is chosen by a seed."""
