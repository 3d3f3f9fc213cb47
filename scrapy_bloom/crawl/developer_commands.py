"""Commands of Scrapy's that run a spider and are no crawl."""

from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES


def is_developer_command(crawler: Crawler) -> bool:
    """Whether ``scrapy parse`` or another command runs that gives the spider requests of its own.

    It must not mark production URLs.
    """
    start = getattr(crawler.spidercls, "start", None)
    return getattr(start, "__module__", "").startswith("scrapy.commands.")


def is_shell(crawler: Crawler) -> bool:
    """Whether ``scrapy shell`` runs: there, nothing is filtered."""
    # Only the shell sets this default.
    settings = crawler.settings
    shell = settings.getpriority("LOGSTATS_INTERVAL") == SETTINGS_PRIORITIES["command"]
    return shell and settings.getfloat("LOGSTATS_INTERVAL") == 0
