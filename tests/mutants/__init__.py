"""Puts mistakes into a copy of the package, and says which test finds each of them."""
