"""The command ``scrapy bloom``."""
