"""A crawl with the filter: looks up the links of pages, and follows requests to their end."""
