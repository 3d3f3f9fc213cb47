"""Uses of filters beyond adding and testing: filters as sets, and in files."""
