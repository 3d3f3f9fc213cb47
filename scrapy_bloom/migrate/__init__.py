"""Sources of a migration: what other dupefilters have recorded."""
