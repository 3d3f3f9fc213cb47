"""Write stories into a database, many at a time."""

from magazine.spiders.links import LinksSpider


class BulkSpider(LinksSpider):
    """A page is done when the transaction with its story is committed.

    A page without an item lists others, and is read again in each run, so that no rule names it.
    """

    name = "bulk"
    listing_meta = {}
    custom_settings = {
        "BLOOM_REMEMBER": "delivered",
        "BLOOM_ITEMS_ONLY": True,
        "ITEM_PIPELINES": {"magazine.pipelines.SQLitePipeline": 300},
    }
