"""What a crawl does with filters: requests, claims, outages, log and stats."""
