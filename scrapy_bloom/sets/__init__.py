"""Filters as sets: how many items they have, and filters made of others."""
