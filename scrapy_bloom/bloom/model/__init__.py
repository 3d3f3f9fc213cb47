"""What a filter is, in values: sizes, hash functions, windows and rings. No I/O."""
