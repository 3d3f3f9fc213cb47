"""A Scrapy project that crawls the magazine in `example_site`, with scrapy-bloom."""
