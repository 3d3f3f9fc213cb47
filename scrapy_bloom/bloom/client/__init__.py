"""Connects to servers: reads addresses, makes redis-py's clients, and runs operations on them."""
