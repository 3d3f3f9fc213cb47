"""The add-on: ``ADDONS = {"scrapy_bloom.Addon": 500}`` sets the dupefilter."""

import logging

from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from scrapy_bloom.bloom.errors import tagged
from scrapy_bloom.dupefilter import BloomDupeFilter, is_ours

logger = logging.getLogger(__name__)


class Addon:
    """Sets ``DUPEFILTER_CLASS``, unless the user or a command has."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Called by Scrapy before the crawl."""
        current = settings.get("DUPEFILTER_CLASS")
        priority = settings.getpriority("DUPEFILTER_CLASS") or 0
        if priority == SETTINGS_PRIORITIES["command"]:
            return  # `scrapy shell` must not filter
        if priority < SETTINGS_PRIORITIES["addon"]:
            settings.set("DUPEFILTER_CLASS", BloomDupeFilter, "addon")
        elif not is_ours(current):
            logger.warning(
                tagged(
                    "addon-unused",
                    "scrapy_bloom.Addon does nothing, because DUPEFILTER_CLASS = %r is set as "
                    "well: remove that line (from settings.py, the spider's custom_settings, the "
                    "command line or another add-on) to filter duplicates with BloomDupeFilter",
                ),
                current,
            )
