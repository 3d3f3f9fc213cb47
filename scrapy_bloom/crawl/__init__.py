"""A crawl with the filter: looks up what pages yield, and follows requests to their end."""
