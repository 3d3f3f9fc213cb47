"""Coverage-guided fuzzing of all parsers: see ``docs/testing.md``."""
