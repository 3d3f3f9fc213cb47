"""What a filter is, and what is done with it: decisions, and the protocol, without I/O."""
