"""Benchmarks, and the page that they write."""
