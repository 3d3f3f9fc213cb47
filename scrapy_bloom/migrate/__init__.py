"""What other dupefilters have seen, and how far it has been read."""
