"""Coverage-guided fuzzing of all parsers: see ``docs/fuzzing.md``."""
