"""Write stories into a database, many at a time."""

from magazine.spiders.links import LinksSpider


class BulkSpider(LinksSpider):
    """A page is done when the transaction with its story is committed."""

    name = "bulk"
    listing_meta = {}
    custom_settings = {
        "BLOOM_REMEMBER": "items",
        "BLOOM_CONFIRM": "delivered",
        "ITEM_PIPELINES": {"magazine.pipelines.SQLitePipeline": 300},
    }
