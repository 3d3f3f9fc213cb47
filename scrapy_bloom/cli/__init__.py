"""The command ``scrapy bloom``: looks at a filter, and changes it."""
