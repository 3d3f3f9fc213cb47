"""Filters in files: saved while they are in use, loaded whole or not at all."""
