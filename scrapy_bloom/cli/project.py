"""Finds the spiders, filters and URLs that a command is about, from options and settings."""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, Settings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError
from scrapy_bloom.cli.output import complain, quoted
from scrapy_bloom.cli.stored import NoFilterError, StoredFilter, filter_keys
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.monitor import Monitor
from scrapy_bloom.crawl.server import Server, complete
from scrapy_bloom.settings import BloomSettings

_HOST = r"(?:[^\s/?#\[\]@]+|\[[0-9a-f:.]+\](?::[0-9]+)?)"
_URL = re.compile(rf"https?://(?:[^\s/?#]*@)?{_HOST}(?:[/?#]\S*)?", re.IGNORECASE)


class Target:
    """A spider and its filter.

    Args:
        spider: the spider's name; "" if none is named.
        crawler: has the spider's class and settings; it never crawls.

    Attributes:
        settings: ours.
        bare: the spider, which isn't initialized, because it may need arguments.

    Raises:
        ConfigurationError: a setting is wrong.
    """

    def __init__(self, spider: str, crawler: Crawler) -> None:
        self.spider, self.crawler = spider, crawler
        self.settings = BloomSettings.read(crawler.settings, spider or "spider")
        self.bare = crawler.spidercls.__new__(crawler.spidercls)

    @property
    def is_known(self) -> bool:
        """Whether there is a project, and not only the name of a filter."""
        return type(self.bare) is not Spider

    @contextmanager
    def server(self) -> Iterator[Server]:
        """Connect to the server, as a crawl does.

        Raises:
            StorageError: it can't be used.
        """
        server = Server(self.settings)
        try:
            yield server
        finally:
            complete(server.close())

    def filter(self, server: Server, key: str | None = None) -> StoredFilter:
        """Read the filter, or another one on its server.

        Raises:
            NoFilterError: there is none.
            StorageError: it's damaged, or the server can't be used.
        """
        own = self.settings
        # Without a project, or for a filter that is named on the command line, the windows are
        # those of the last crawl, unless the settings have one.
        priority = self.crawler.settings.getpriority("BLOOM_KEY")
        is_named = priority == SETTINGS_PRIORITIES["cmdline"]
        has_windows = own.recrawl_after is not None or (self.is_known and not is_named)
        is_own = key in (None, own.key) and has_windows
        schedules = own.rules().schedules if is_own else {}
        return StoredFilter(server.bloom.client, key or own.key, server.label, schedules)

    @contextmanager
    def connect(self) -> Iterator[StoredFilter]:
        """Connect to the filter, and read it.

        Raises:
            NoFilterError: there is none.
            StorageError: the server can't be used.
        """
        with self.server() as server:
            yield self.filter(server)

    def identity(self) -> Identity:
        """Return what identifies requests as crawls do."""
        crawler = self.crawler
        crawler.spider = self.bare
        fingerprinter = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
        crawler.request_fingerprinter = build_from_crawler(fingerprinter, crawler)
        return Identity(crawler, self.settings.rules(), Monitor(None))


def crawlers(settings: Settings, opts: argparse.Namespace) -> Iterator[tuple[str, Crawler]]:
    """Yield the spider that the options name, or all spiders of the project, with their names.

    Raises:
        ConfigurationError: there is no such spider.
    """
    loader: Any = load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())
    names = sorted(loader.list())
    if names and opts.spider not in (None, *names):
        raise ConfigurationError(
            f"--spider {quoted(opts.spider)} isn't a spider of the project. Choose one of "
            f"{', '.join(names)}"
        )
    for name in [opts.spider or ""] if opts.spider or not names else names:
        crawler = Crawler(loader.load(name) if names else Spider, settings)
        crawler.addons.load_settings(crawler.settings)
        yield name, crawler


def target(settings: Settings, opts: argparse.Namespace) -> Target:
    """Return the spider that the options name, or the only one.

    Raises:
        ConfigurationError: there are several, or none; or a setting is wrong.
    """
    found = [Target(*one) for one in crawlers(settings, opts)]
    if len(found) > 1:
        names = ", ".join(one.spider for one in found)
        raise ConfigurationError(f"There are several spiders. Choose one of {names} with --spider")
    return found[0]


def filters(settings: Settings, opts: argparse.Namespace, *, every: bool) -> Iterator[StoredFilter]:
    """Yield the filters of the chosen spiders, or all on their servers; tell which are missing."""
    found = [Target(*one) for one in crawlers(settings, opts)]
    unique = {(one.settings.redis_url, "" if every else one.settings.key): one for one in found}
    for one in unique.values():
        with one.server() as server:
            keys = [one.settings.key]
            if every and not (keys := filter_keys(server.bloom.client, server.label)):
                complain(f"There is no filter on {server.label}. Crawl something first")
            for key in keys:
                try:
                    stored = one.filter(server, key)
                except BloomError as error:
                    if not every and not isinstance(error, NoFilterError):
                        raise
                    complain(str(error))
                else:
                    yield stored


def read_urls(given: Sequence[str]) -> list[str]:
    """Return the given URLs, each once; ``-`` stands for those on the standard input.

    Raises:
        ConfigurationError: a text isn't the URL of a page.
    """
    texts = [url for url in given if url != "-"]
    if "-" in given:
        texts += sys.stdin.buffer.read().decode("utf-8-sig", "replace").split("\n")
    return list(dict.fromkeys(checked_url(text) for one in texts if (text := one.strip())))


def checked_url(url: str) -> str:
    """Return a text that is the URL of a page.

    Raises:
        ConfigurationError: it isn't one.
    """
    if not _URL.fullmatch(url) or not url.isprintable() or "\ufffd" in url:
        hint = "Write it in full, for example https://example.com/page"
        raise ConfigurationError(f"{quoted(url)} isn't the URL of a page. {hint}")
    return url
