"""Real crawls in trouble: kills, outages and failovers at random moments hide no page or item."""
