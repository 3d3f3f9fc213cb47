"""The values that a filter consists of: sizes, hash functions, windows and rings. No I/O."""
