"""Extensions of the project."""

import json
from pathlib import Path

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured


class StatsFile:
    """Write a crawl's final stats as JSON to the file that the setting `STATS_FILE` names."""

    def __init__(self, crawler: Crawler, path: Path) -> None:
        self.crawler = crawler
        self.path = path

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "StatsFile":
        path = crawler.settings.get("STATS_FILE")
        if not path:
            raise NotConfigured
        extension = cls(crawler, Path(path))
        crawler.signals.connect(extension.spider_closed, signal=signals.spider_closed)
        return extension

    def spider_closed(self) -> None:
        """The scheduler, and with it the dupefilter, is closed by now: the stats are complete."""
        stats = self.crawler.stats.get_stats() if self.crawler.stats else {}
        self.path.write_text(json.dumps(stats, default=str, indent=1, sort_keys=True))
