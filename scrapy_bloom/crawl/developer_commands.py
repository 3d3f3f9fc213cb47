"""Commands of Scrapy's that run a spider and are no crawl."""

from scrapy.crawler import Crawler

from scrapy_bloom.crawl.engine_hooks import EngineAdapter


def is_developer_command(crawler: Crawler) -> bool:
    """Whether ``scrapy parse`` or another command runs that gives the spider requests of its own.

    It must not mark production URLs.
    """
    start = getattr(crawler.spidercls, "start", None)
    return getattr(start, "__module__", "").startswith("scrapy.commands.")


def is_shell(crawler: Crawler) -> bool:
    """Whether ``scrapy shell`` runs, once its spider is open: there, nothing is filtered."""
    # It makes an engine that stays open, and does not start it by `Crawler.crawl`.
    return not (EngineAdapter(crawler).closes_when_idle or crawler.crawling)
