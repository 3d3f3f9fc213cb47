"""Connections to servers: addresses, clients of redis-py's, and what runs operations on them."""
