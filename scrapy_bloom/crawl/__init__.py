"""One crawl on its filters: requests, claims, outages, log and stats."""
