"""The command ``scrapy bloom``, with which people look at a filter and change it."""
