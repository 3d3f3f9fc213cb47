"""What the subcommands of ``scrapy bloom`` share: the project, its server, and how they answer."""

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from types import ModuleType
from typing import Any

import redis
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import load_object

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, explain, showable
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol.ring_store import Notify, Snapshot
from scrapy_bloom.cli import render
from scrapy_bloom.crawl.filters import connect_filters
from scrapy_bloom.settings import LASTING, WORDS, BloomSettings

#: Fields that are Unix times; JSON has each of them as text, too.
TIMES = frozenset(("opened", "closes", "forgotten", "since", "until", "now"))
#: The last Unix time that has a date, in the year 9999; what is stored may be later.
LAST_TIME = 253_402_300_799
#: Properties that JSON has beside the fields.
PROPERTIES = ("fill_ratio", "bits_per_url", "rate", "low", "high")
#: Shows how far something is: gives a function that counts on.
Progress = AbstractContextManager[Callable[[int], None]]


class NothingThereError(BloomError):
    """There is no such filter."""


class Server:
    """The server of a project's filters.

    Args:
        settings: say where it is, and what the filters are called.
        scrapy_settings: may say it in scrapy-redis's way.
    """

    def __init__(self, settings: BloomSettings, scrapy_settings: Settings) -> None:
        self._key = settings.key
        self._connection = connect_filters(settings, scrapy_settings).connection
        self.address = self._connection.label

    def key(self, window: str) -> str:
        """Return the key of a window's filter."""
        return self._key if window == LASTING else f"{self._key}:{window}"

    def filter(self, window: str, notify: Notify | None = None) -> BloomFilter:
        """Return a window's filter, as it is stored: settings would change it at its first use."""
        client = self._connection.client
        return BloomFilter(client, self.key(window), notify=notify, label=self.address, words=WORDS)

    def look(self, window: str) -> Snapshot | None:
        """Read a window's filter without changing it; None if there is nothing."""
        snapshot = self.filter(window).look()
        # A header outlives its blocks.
        return snapshot if snapshot is not None and snapshot.rings else None

    def read(self, window: str) -> Snapshot:
        """Do as ``look``; but there has to be a filter.

        Raises:
            NothingThereError: there is none.
        """
        snapshot = self.look(window)
        if snapshot is None:
            raise self.absent(window)
        return snapshot

    def hmget(self, key: str, fields: Sequence[str]) -> list[bytes]:
        """Return fields of a hash; b"" for those that are not there.

        Raises:
            StorageError: the server did not answer.
        """
        try:
            found = self._connection.client.hmget(key, fields)
        except (redis.RedisError, OSError) as error:
            raise explain(error, self.address) from showable(error)
        return [value if isinstance(value, bytes) else b"" for value in found]

    def absent(self, window: str) -> NothingThereError:
        """Return the error for a filter that is not there."""
        return NothingThereError(
            f"there is no filter {self.key(window)!r} on {self.address}: nothing has been crawled "
            "with it yet, all of it has expired, or it is on another server or under another key "
            "(--key)"
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class CommandSession:
    """One call of a subcommand.

    Args:
        project: the settings of the project and of the command line.
        opts: the options.

    Raises:
        ConfigurationError: settings or options are wrong.
    """

    def __init__(self, project: Settings, opts: argparse.Namespace) -> None:
        self.opts = opts
        loader: Any = load_object(project["SPIDER_LOADER_CLASS"]).from_settings(
            project.frozencopy()
        )
        #: Names of the project's spiders.
        self.spiders: Sequence[str] = sorted(loader.list())
        spider = _choose_spider(loader, self.spiders, project, opts)
        #: Has the settings of the spider and of add-ons; it never crawls.
        self.crawler = Crawler(spider, project)
        self.crawler.addons.load_settings(self.crawler.settings)
        name = getattr(spider, "name", None) or "spider"
        self.settings = BloomSettings.from_scrapy(self.crawler.settings, name)

    @property
    def tables(self) -> ModuleType | None:
        """What prints text; None if JSON is asked for."""
        return None if self.opts.json else render

    def connect(self) -> AbstractContextManager[Server]:
        """Return a connection to the server, which is closed at the end."""
        return closing(Server(self.settings, self.crawler.settings))

    @property
    def window(self) -> str:
        """The window that was asked for.

        Raises:
            ConfigurationError: there is none of that name.
        """
        name: str = self.opts.window or LASTING
        known = (LASTING, *self.settings.windows)
        # Which windows another filter has is not known.
        if name not in known and self.opts.key is None:
            raise ConfigurationError(
                f"--window {name!r:.60} is not in BLOOM_WINDOWS; there are {', '.join(known)}"
            )
        return name

    @property
    def is_chosen(self) -> bool:
        """Whether one filter was asked for, instead of all that the project has."""
        return self.opts.window is not None or self.opts.key is not None

    def progress(self, title: str, total: int | None = None) -> Progress:
        """Show how far something is."""
        return render.progress(title, total)

    def confirm(self, question: str) -> bool:
        """Ask, unless ``--yes`` answers.

        Raises:
            ConfigurationError: there is nobody to ask.
        """
        if self.opts.yes:
            return True
        if not sys.stdin.isatty():
            raise ConfigurationError(f"{question}? Nobody can be asked here: add --yes to do it")
        sys.stderr.write(f"{question}? [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_json(document: object) -> None:
    """Print a JSON document."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def to_json(value: Any) -> Any:
    """Return a dataclass as JSON has it: by field, times also as ``<field>_utc`` (null for 0)."""
    if isinstance(value, tuple):
        return [to_json(member) for member in value]
    if not is_dataclass(value):
        return value
    document: dict[str, Any] = {}
    for field in fields(value):
        content = getattr(value, field.name)
        document[field.name] = to_json(content)
        if field.name in TIMES:
            document[f"{field.name}_utc"] = iso(content)
    document |= {name: getattr(value, name) for name in PROPERTIES if hasattr(value, name)}
    return document


def iso(time: int) -> str | None:
    """Return a Unix time in UTC as ISO 8601 has it; None for 0, and where it has no date."""
    if not 0 < time <= LAST_TIME:
        return None
    return f"{datetime.fromtimestamp(time, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def complain(text: str) -> None:
    """Say something on the standard error, in one line."""
    sys.stderr.write(f"scrapy bloom: {' '.join(text.split())}\n")


def _choose_spider(
    loader: Any, names: Sequence[str], project: Settings, opts: argparse.Namespace
) -> type[Spider]:
    """Return the spider whose settings count; ``Spider`` itself where it does not matter which."""
    listed = ", ".join(names) or "none"
    if opts.spider is not None and opts.spider not in names:
        close = difflib.get_close_matches(opts.spider, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {listed}"
        raise ConfigurationError(f"--spider {opts.spider!r:.60} is no spider of a project; {hint}")
    if opts.spider is not None or len(names) == 1:
        spider: type[Spider] = loader.load(opts.spider or names[0])
        return spider
    template = project.get("BLOOM_KEY")
    is_shared = isinstance(template, str) and template.strip() and "%(spider)s" not in template
    if is_shared or opts.command == "plan":
        return Spider
    if names:
        raise ConfigurationError(
            f"each spider has a filter of its own: choose one with --spider (there are: {listed}), "
            "or give the filter's key with --key"
        )
    raise ConfigurationError(
        "no project or spider says which filter: give its key with --key (BLOOM_KEY of the "
        "project; unless set, NAME:bloom for the spider NAME)"
    )
