"""Which filter a command is about: that of a spider of the project, or of a key."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_bloom.bloom.client.connect import connect
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.protocol.rings import DEFAULT
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.cli.output import listed, quoted
from scrapy_bloom.cli.stored import StoredFilter
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.server import data_directory
from scrapy_bloom.settings import BloomSettings


@dataclass(frozen=True)
class Target:
    """A spider and its filter.

    Args:
        crawler: has the spider's class and settings; it never crawls.
        settings: ours.
        spider: the spider's name; "" if none is named.
    """

    crawler: Crawler
    settings: BloomSettings
    spider: str

    @property
    def schedules(self) -> dict[str, Schedule]:
        """How long the windows are that crawls with these settings have; none if that's unknown."""
        if self.crawler.spidercls is Spider and self.settings.recrawl_after is None:
            return {}
        return {DEFAULT: self.settings.schedule(), **self.settings.rules().schedules}

    @contextmanager
    def connect(self) -> Iterator[StoredFilter]:
        """Connect to the filter as it's stored, which may not exist.

        Raises:
            StorageError: the server can't be used.
        """
        own, params = self.settings, self.settings.redis_params or {}
        where: dict[str, Any] = {"timeout": own.timeout, "data_dir": data_directory()}
        connection = connect(own.redis_url, **where, **params)
        try:
            bloom = BloomFilter(
                connection.client,
                own.key,
                window=own.recrawl_after,
                period=own.rotate_every,
                windows=dict(own.rules().schedules),
                label=connection.label,
            )
            yield StoredFilter(bloom, self.schedules)
        finally:
            connection.close()

    def bare_spider(self) -> Spider:
        """Return a spider that isn't initialized, because it may need arguments."""
        cls: type[Spider] = self.crawler.spidercls
        return cls.__new__(cls)

    def identity(self) -> Identity:
        """Return what identifies requests as crawls do."""
        crawler = self.crawler
        crawler.spider = self.bare_spider()
        fingerprinter = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
        crawler.request_fingerprinter = build_from_crawler(fingerprinter, crawler)
        return Identity(crawler, self.settings.rules(), Report(None))


class Project:
    """The project that a command runs in, if there is one.

    Args:
        settings: of the project and the command line.
        opts: the options.
    """

    def __init__(self, settings: Settings, opts: argparse.Namespace) -> None:
        self._settings, self._opts = settings, opts
        loader = load_object(settings["SPIDER_LOADER_CLASS"])
        self._loader: Any = loader.from_settings(settings.frozencopy())
        self._names: list[str] = sorted(self._loader.list())

    def target(self) -> Target:
        """Return the spider that the options name, or the only one.

        Raises:
            ConfigurationError: there are several, or none; or a setting is wrong.
        """
        if self._opts.spider is None and len(self._names) > 1:
            raise ConfigurationError(
                f"the project has several spiders. Choose one with --spider: {listed(self._names)}"
            )
        return self._target(self._opts.spider or next(iter(self._names), ""))

    def targets(self) -> list[Target]:
        """Return the spider that the options name, or all spiders of the project.

        Raises:
            ConfigurationError: there is none, or a setting is wrong.
        """
        if self._opts.spider is not None or not self._names:
            return [self.target()]
        return [self._target(name) for name in self._names]

    def _target(self, name: str) -> Target:
        if self._names and name not in self._names:
            raise ConfigurationError(
                f"--spider {quoted(name)} isn't a spider of the project. Choose one of: "
                f"{listed(self._names)}"
            )
        crawler = Crawler(self._loader.load(name) if self._names else Spider, self._settings)
        crawler.addons.load_settings(crawler.settings)
        if not name and "%(spider)s" in (crawler.settings.get("BLOOM_KEY") or "%(spider)s"):
            raise ConfigurationError(
                "there is no project here, so the filter isn't known. Name its key with --key, or "
                "the spider with --spider"
            )
        return Target(crawler, BloomSettings.read(crawler.settings, name or "spider"), name)


def key_of(identity: Identity, request: Any) -> Key:
    """Return what identifies a request in the filter.

    Raises:
        ConfigurationError: the project's fingerprinter fails.
    """
    try:
        return identity.key(request)
    except Exception as error:
        raise ConfigurationError(
            f"the project's fingerprinter fails for {quoted(request.url)} "
            f"({type(error).__name__}: {error})"
        ) from error
