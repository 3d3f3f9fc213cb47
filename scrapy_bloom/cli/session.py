"""Shared by the subcommands: the project, its server, and the forms of output."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import IntEnum
from functools import cached_property
from typing import Any

import redis
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_bloom.bloom.client.driver import reading
from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, explain, showable
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.schedule import MAX_TIME
from scrapy_bloom.bloom.options import KEEP
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.crawl.filters import connect_filters
from scrapy_bloom.settings import DEFAULT, WORDS, BloomSettings

#: Fields that are Unix times: JSON also has each of them as text.
TIMES = frozenset(
    (
        *("opened", "closes", "forgotten", "since", "until", "due", "claimed", "saved", "now"),
        *("first", "last", "recorded_after"),
    )
)
#: Properties that JSON has in addition to the fields.
PROPERTIES = ("fill_ratio", "bits_per_url", "rate", "low", "high")


class ExitCode(IntEnum):
    """How a subcommand ended."""

    #: Done.
    FINE = 0
    #: There is no such filter, there is a problem, a URL is not seen, an entry is malformed, or the
    #: user said no.
    NO = 1
    #: Wrong usage or settings, or a server or file that cannot be used.
    FAILED = 2
    #: The reader of the output closed it: the code of a program that SIGPIPE ended.
    BROKEN_PIPE = 141

    @classmethod
    def of(cls, is_fine: bool) -> "ExitCode":
        """Return FINE or NO."""
        return cls.FINE if is_fine else cls.NO


class NothingThereError(BloomError):
    """There is no such filter."""


class Server:
    """The server of a project's filters.

    Args:
        settings: name the server and the filters.
        scrapy_settings: may name the server as scrapy-redis does.
        fingerprinter: import path of the class that makes the fingerprints of new filters.
    """

    def __init__(
        self, settings: BloomSettings, scrapy_settings: Settings, fingerprinter: str
    ) -> None:
        self._prefix = settings.key
        #: The project's filters; those that do not exist are made by its settings.
        self.filters = connect_filters(
            settings, scrapy_settings, on_difference=KEEP, fingerprinter=fingerprinter
        )
        self.client = self.filters.connection.client
        self.address = self.filters.connection.label

    def key(self, window: str) -> str:
        """Return the key of a window's filter."""
        return self._prefix if window == DEFAULT else f"{self._prefix}:{window}"

    def filter(self, window: str) -> BloomFilter:
        """Return a window's filter as it is stored, without the project's settings."""
        return BloomFilter(self.client, self.key(window), label=self.address, words=WORDS)

    def look(self, window: str) -> Snapshot | None:
        """Read a window's filter without changing it; None if there is nothing."""
        snapshot = self.filter(window).look()
        # A header outlives its blocks.
        return snapshot if snapshot is not None and snapshot.rings else None

    def read(self, window: str) -> Snapshot:
        """Read a window's filter, which must exist.

        Raises:
            NothingThereError: the filter does not exist.
        """
        snapshot = self.look(window)
        if snapshot is None:
            raise self.absent(window)
        return snapshot

    def absent(self, window: str) -> NothingThereError:
        """Return the error for a filter that does not exist."""
        return NothingThereError(
            f"there is no filter {self.key(window)!r} on {self.address}: nothing has been crawled "
            "with it yet, all of it has expired, or it is on another server or under another key "
            "(--key)"
        )

    def ping(self) -> None:
        """Make sure that the server answers.

        Raises:
            StorageError: it does not.
        """
        try:
            with reading():
                self.client.ping()
        except redis.exceptions.NoPermissionError:
            pass  # a refusal is an answer
        except (redis.RedisError, OSError) as error:
            raise explain(error, self.address, WORDS) from showable(error)

    def close(self) -> None:
        """Close the connection."""
        self.filters.close()


class CommandSession:
    """One call of a subcommand. What is wrong is refused when it is first needed.

    Args:
        project: the settings of the project and of the command line.
        opts: the options.
    """

    def __init__(self, project: Settings, opts: argparse.Namespace) -> None:
        self.project, self.opts = project, opts

    @cached_property
    def loader(self) -> Any:
        """What loads the project's spiders."""
        return load_object(self.project["SPIDER_LOADER_CLASS"]).from_settings(
            self.project.frozencopy()
        )

    @cached_property
    def spiders(self) -> Sequence[str]:
        """Names of the project's spiders."""
        return sorted(self.loader.list())

    @property
    def all_spiders(self) -> list[type[Spider]]:
        """All spiders of the project; outside a project, ``Spider`` itself."""
        return [self.loader.load(name) for name in self.spiders] or [Spider]

    @cached_property
    def crawler(self) -> Crawler:
        """Has the settings of the spider and of add-ons; it never crawls.

        Raises:
            ConfigurationError: the options name no spider, or there are several.
        """
        return self.crawler_of(_choose_spider(self.loader, self.spiders, self.project, self.opts))

    @cached_property
    def settings(self) -> BloomSettings:
        """Our settings.

        Raises:
            ConfigurationError: they, or the options, are wrong.
        """
        return BloomSettings.from_scrapy(self.crawler.settings, name_of(self.crawler))

    def crawler_of(self, spider: type[Spider]) -> Crawler:
        """Return a crawler with the settings of a spider and of add-ons; it never crawls."""
        crawler = Crawler(spider, self.project)
        crawler.addons.load_settings(crawler.settings)
        return crawler

    def connect(self, fingerprinter: str = "") -> AbstractContextManager[Server]:
        """Return a connection to the server, which is closed at the end."""
        return closing(Server(self.settings, self.crawler.settings, fingerprinter))

    def connect_any(self) -> AbstractContextManager[Server]:
        """Return a connection to the server of the project, whatever the spider."""
        opts, is_one = self.opts, len(self.spiders) == 1
        crawler = self.crawler if opts.spider or is_one else self.crawler_of(Spider)
        settings = BloomSettings.from_scrapy(crawler.settings, name_of(crawler))
        return closing(Server(settings, crawler.settings, ""))

    @property
    def window(self) -> str:
        """The window that the options name.

        Raises:
            ConfigurationError: no window has that name.
        """
        name: str = self.opts.window or DEFAULT
        known = self.windows
        # The windows of a filter that --key names are not known.
        if name not in known and self.opts.key is None:
            raise ConfigurationError(
                f"--window {name!r:.60} is none of BLOOM_RECRAWL_RULES; there are "
                f"{', '.join(known)}"
            )
        return name

    @cached_property
    def windows(self) -> Sequence[str]:
        """The names of all windows that have a filter, the main one first."""
        return DEFAULT, *self.settings.windows.others

    @property
    def is_chosen(self) -> bool:
        """Whether the options name one filter, instead of all that the project has."""
        return self.opts.window is not None or self.opts.key is not None

    def stored_blocks(self, server: Server) -> dict[str, int]:
        """Return how many blocks each filter has that the options choose and that is there.

        Raises:
            NothingThereError: none is there.
        """
        names = [self.window] if self.is_chosen else self.windows
        blocks = {name: found.header.blocks for name in names if (found := server.look(name))}
        if not blocks:
            raise server.absent(names[0])
        return blocks

    def confirm(self, question: str) -> bool:
        """Ask, unless ``--yes`` answers.

        Raises:
            ConfigurationError: there is no terminal to ask at.
        """
        if self.opts.yes:
            return True
        if not sys.stdin.isatty():
            raise ConfigurationError(
                f"{question}? There is no terminal to ask at: add --yes to do it"
            )
        print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def report(self, document: Mapping[str, Any], text: str) -> None:
        """Print a result: the document with ``--json``, else the text."""
        print(json.dumps(document, indent=2) if self.opts.json else text)


def print_json_list(
    head: Mapping[str, Any], name: str, members: Iterable[Mapping[str, Any]]
) -> None:
    """Print a JSON document that ends with a list, which may be too long for the memory."""
    print(f"{json.dumps(head)[:-1]}, {json.dumps(name)}: [", end="")
    separator = "\n"
    for member in members:
        print(f"{separator}  {json.dumps(member)}", end="")
        separator = ",\n"
    print("\n]}")


def to_json(value: Any) -> Any:
    """Return a dataclass as a JSON object of its fields, times also as ``<field>_utc``."""
    if isinstance(value, tuple):
        return [to_json(member) for member in value]
    if not is_dataclass(value):
        return value
    document = with_dates(
        {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    )
    return document | {name: getattr(value, name) for name in PROPERTIES if hasattr(value, name)}


def with_dates(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with each Unix time also as ``<field>_utc``."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        found[name] = value
        if name in TIMES:
            found[f"{name}_utc"] = iso(value)
    return found


def iso(time: int) -> str | None:
    """Return a Unix time in UTC in the form of ISO 8601; None for 0, and beyond the calendar."""
    if time > MAX_TIME:
        return None  # damaged: anybody may have written it
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}" if time else None


def complain(text: str) -> None:
    """Print one line to the standard error."""
    print(f"scrapy bloom: {' '.join(text.split())}", file=sys.stderr)


def name_of(crawler: Crawler) -> str:
    """Return the name of a crawler's spider, as BLOOM_KEY has it."""
    return getattr(crawler.spidercls, "name", None) or "spider"


def fingerprinter_of(crawler: Crawler) -> Any:
    """Return the fingerprinter of a crawler that never crawls, and has none."""
    return build_from_crawler(load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"]), crawler)


@dataclass
class Subcommand:
    """A subcommand of a module that has several; a module of one has these names itself.

    Args:
        HELP: a line for the help.
        add_options: adds its options.
        run: runs it; may raise any error of the package.
    """

    HELP: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[CommandSession], ExitCode]


def add_filter_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a filter."""
    parser.add_argument("--key", help="the filter's key (by default BLOOM_KEY)")
    parser.add_argument(
        "--window", metavar="NAME", help="the filter of a rule's window, such as 1-day"
    )


def add_change_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a subcommand that changes a filter."""
    add_filter_options(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do it without asking")


def _choose_spider(
    loader: Any, names: Sequence[str], project: Settings, opts: argparse.Namespace
) -> type[Spider]:
    """Return the spider whose settings count; ``Spider`` itself if any spider will do."""
    listed = ", ".join(names) or "none"
    if opts.spider is not None and opts.spider not in names:
        raise ConfigurationError(
            f"--spider {opts.spider!r:.60} is no spider of a project; there are: {listed}"
        )
    if opts.spider is not None or len(names) == 1:
        spider: type[Spider] = loader.load(opts.spider or names[0])
        return spider
    template = project.get("BLOOM_KEY")
    is_shared = isinstance(template, str) and template.strip() and "%(spider)s" not in template
    if is_shared or opts.command == "plan":
        return Spider
    raise ConfigurationError(
        "each spider has a filter of its own (its key is NAME:bloom, unless BLOOM_KEY is set): "
        f"choose one with --spider (there are: {listed}), or give the filter's key with --key"
    )
