"""Each night, read what is new, and lose no item."""

from magazine.spiders.links import LinksSpider


class NightlySpider(LinksSpider):
    """A page without an item lists others, and is read again in each run: no rule names it.

    A page is done when the file with its story is written. After `kill -9`, the next run reads the
    others again.
    """

    name = "nightly"
    listing_meta = {}
    custom_settings = {
        "BLOOM_REMEMBER": "delivered",
        "BLOOM_ITEMS_ONLY": True,
        "FEEDS": {"items/%(batch_time)s-%(batch_id)05d.jsonl": {"format": "jsonlines"}},
        "FEED_EXPORT_BATCH_ITEM_COUNT": 100,
    }
