"""One call of a subcommand, and what subcommands are made of."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.cli.output import Column, Document, json_list, table
from scrapy_bloom.cli.server import ProjectServer, Stored
from scrapy_bloom.crawl import workers
from scrapy_bloom.settings import DEFAULT, BloomSettings

#: An option of a subcommand: what argparse's ``add_argument`` takes.
Option = tuple[tuple[str, ...], dict[str, Any]]
#: Runs a subcommand.
Run = Callable[["CommandSession"], "ExitCode | None"]


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


class DeclinedError(Exception):
    """The user said no."""


# -- subcommands --


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand.

    Args:
        help: a line for the help.
        options: its own; of a list, exactly one has to be given.
        run: runs it, and returns how it ended, None for FINE; may raise any error of the package.
    """

    help: str
    options: Sequence[Option | list[Option]]
    run: Run

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.run.__name__.strip("_")

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add its options to a parser."""
        for one in self.options:
            is_list = isinstance(one, list)
            group = parser.add_mutually_exclusive_group(required=True) if is_list else parser
            for names, how in one if isinstance(one, list) else [one]:
                group.add_argument(*names, **how)


def option(*names: str, **how: Any) -> Option:
    """Return an option, by the arguments of argparse's ``add_argument``."""
    return names, how


def subcommand(text: str, *options: Option | list[Option]) -> Callable[[Run], Subcommand]:
    """Make a subcommand of the function that runs it, with a line of help and options."""
    return lambda run: Subcommand(text, options, run)


KEY = option("--key", help="the filter's key (by default BLOOM_KEY)")
WINDOW = option("--window", metavar="NAME", help="the filter of a rule's window, such as 1-day")
#: Options that choose a filter, and those of a subcommand that changes it.
FILTER = KEY, WINDOW
CHANGE = *FILTER, option("-y", "--yes", action="store_true", help="do it without asking")


# -- a call of one --


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

    @cached_property
    def _tags(self) -> dict[str, str]:
        return {workers.tag(name): name for name in self.spiders}

    def spider_of(self, owner: str) -> str:
        """Return the spider of a claim's owner: its name, or else its tag."""
        return self._tags.get(owner[1:9], owner[1:9])

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

    def connect(self, fingerprinter: str = "") -> AbstractContextManager[ProjectServer]:
        """Return a connection to the server, which is closed at the end."""
        return closing(ProjectServer(self.settings, self.crawler.settings, fingerprinter))

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

    def chosen(self, server: ProjectServer) -> Iterator[tuple[str, Stored | None]]:
        """Yield the windows that the options choose, each with its filter; None if there is none.

        Raises:
            StorageError: the server did not answer, or a filter cannot be read.
        """
        for name in [self.window] if self.is_chosen else self.windows:
            yield name, server.look(name)

    def stored(self, server: ProjectServer) -> dict[str, Stored]:
        """Return the filters that the options choose and that are there, by window.

        Raises:
            NothingThereError: none is there.
        """
        chosen = dict(self.chosen(server))
        found = {name: stored for name, stored in chosen.items() if stored is not None}
        if not found:
            raise server.absent(next(iter(chosen)))
        return found

    def confirm(self, question: str) -> None:
        """Ask, unless ``--yes`` answers.

        Raises:
            DeclinedError: the user said no.
            ConfigurationError: there is no terminal to ask at.
        """
        if self.opts.yes:
            return
        if not sys.stdin.isatty():
            raise ConfigurationError(
                f"{question}? There is no terminal to ask at: add --yes to do it"
            )
        print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise DeclinedError

    def report(self, document: Mapping[str, Any], text: str) -> None:
        """Print a result: the document with ``--json``, else the text."""
        print(json.dumps(document, indent=2) if self.opts.json else text)

    def report_filters(
        self, server: ProjectServer, filters: Iterable[tuple[Document, str]]
    ) -> None:
        """Print filters, each by its document or its text."""
        documents, texts = zip(*filters, strict=True)
        self.report({"address": server.address, "filters": documents}, "\n\n".join(texts))

    def report_list(
        self,
        head: Mapping[str, Any],
        name: str,
        rows: Iterable[Document],
        columns: Sequence[Column[Document]],
        summary: Callable[[int], str],
    ) -> None:
        """Print rows as they come: with ``--json`` as a list of a document, else as a table.

        Args:
            head: what else the document has.
            name: of the list in the document.
            rows: the members of the list.
            columns: of the table.
            summary: returns what stands below a table of so many rows; called at its end.
        """
        count = 0

        def counted() -> Iterator[Document]:
            nonlocal count
            for row in rows:
                yield row
                count += 1

        is_json = self.opts.json
        for line in json_list(head, name, rows) if is_json else table(columns, counted()):
            print(line)
        if not is_json:
            print(summary(count))


def name_of(crawler: Crawler) -> str:
    """Return the name of a crawler's spider, as BLOOM_KEY has it."""
    return getattr(crawler.spidercls, "name", None) or "spider"


def fingerprinter_of(crawler: Crawler) -> Any:
    """Return the fingerprinter of a crawler that never crawls, and has none."""
    return build_from_crawler(load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"]), crawler)


def _choose_spider(
    loader: Any, names: Sequence[str], project: Settings, opts: argparse.Namespace
) -> type[Spider]:
    """Return the spider whose settings count; ``Spider`` itself if any spider will do."""
    nothing = "none yet" if project.getlist("SPIDER_MODULES") else "none: this is no Scrapy project"
    listed = ", ".join(names) or nothing
    if opts.spider is not None and opts.spider not in names:
        raise ConfigurationError(
            f"--spider {opts.spider!r:.60} is no spider of a project; there are: {listed}"
        )
    if opts.spider is not None or len(names) == 1:
        spider: type[Spider] = loader.load(opts.spider or names[0])
        return spider
    template = project.get("BLOOM_KEY")
    is_shared = isinstance(template, str) and template.strip() and "%(spider)s" not in template
    if is_shared or opts.command in ("plan", "list"):
        return Spider
    raise ConfigurationError(
        "each spider has a filter of its own (its key is NAME:bloom, unless BLOOM_KEY is set): "
        f"choose one with --spider (there are: {listed}), or give the filter's key with --key"
    )
