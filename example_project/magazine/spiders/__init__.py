"""The spiders that need nothing but Scrapy and scrapy-bloom."""
