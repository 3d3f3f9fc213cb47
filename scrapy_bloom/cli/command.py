"""The command ``scrapy bloom``: plan, inspect, query, fill, rotate, clear, save, load filters.

Filters are used as they are stored: no setting of the project's changes them from here.
"""

import argparse
import io
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from scrapy.addons import AddonManager
from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError
from scrapy.utils.log import configure_logging

from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, in_words
from scrapy_bloom.bloom.model.plan import forecast
from scrapy_bloom.bloom.options import DEFAULTS, OPTIONS, FilterOptions
from scrapy_bloom.bloom.protocol.info import FilterInfo, describe
from scrapy_bloom.bloom.protocol.measure import MAX_PROBES, Measurement
from scrapy_bloom.bloom.protocol.ring_store import ROTATED, Snapshot
from scrapy_bloom.bloom.validators import whole_number
from scrapy_bloom.cli import check, delete, migrate, pending, transfer
from scrapy_bloom.cli.session import (
    CommandSession,
    NothingThereError,
    Server,
    complain,
    iso,
    print_json,
    to_json,
)
from scrapy_bloom.settings import ATTRIBUTES, LASTING, WORDS

logger = logging.getLogger(__name__)

FINE, NO, FAILED = 0, 1, 2
#: As a shell has it of a program that is ended by SIGPIPE, such as ``cat`` before ``head``.
BROKEN_PIPE = 141
EXIT_CODES = (
    "Exit codes: 0 fine; 1 there is no such filter, a URL is not seen, an entry is no fingerprint "
    "or URL, or you said no; 2 wrong usage or settings, the server or a file cannot be used, or "
    "what was to be recorded is not seen afterwards; 141 the reader of the output has closed it."
)
#: Options of filters that ``plan`` takes: those that say how large they are.
PLAN_OPTIONS = {
    ATTRIBUTES[option.name]: option.help
    for option in OPTIONS
    if option.name not in ("stagger", "run")
}


class BloomCommand(ScrapyCommand):
    """``scrapy bloom``, in a project and outside."""

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        """Return what follows the command's name."""
        return "<subcommand> [options]"

    def short_desc(self) -> str:
        """Return a line for Scrapy's list of commands."""
        return "Plan, inspect, query, fill, rotate, clear, delete, save and load Bloom filters"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add Scrapy's options and the subcommands."""
        super().add_options(parser)
        parser.epilog = f"{EXIT_CODES} For more: scrapy bloom <subcommand> -h"
        commands = parser.add_subparsers(title="Subcommands", prog="scrapy bloom", dest="command")
        for name, (run, add_options, text) in SUBCOMMANDS.items():
            subcommand = commands.add_parser(
                name,
                help=text,
                description=f"{text[0].upper()}{text[1:]}.",
                epilog=EXIT_CODES,
                formatter_class=parser.formatter_class,
            )
            subcommand.set_defaults(run=run)
            add_options(subcommand)
            _add_common_options(subcommand)

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Turn options into settings."""
        opts.set = [*opts.set, *getattr(opts, "set_after", [])]
        super().process_options(args, opts)
        if args:
            raise UsageError(f"unrecognized arguments: {' '.join(args)}")
        if opts.command is None:
            raise UsageError
        given = {f"BLOOM_{name.upper()}": getattr(opts, name, None) for name in PLAN_OPTIONS}
        given["BLOOM_KEY"] = getattr(opts, "key", None)
        given = {name: value for name, value in given.items() if value is not None}
        # Settings with a window in runs are refused without a run; no filter is shown this one.
        given["BLOOM_RUN"] = "scrapy bloom"
        # The standard output is for the answer.
        given["LOG_STDOUT"] = False
        assert self.settings is not None  # noqa: S101 - Scrapy sets it
        self.settings.setdict(given, priority="cmdline")

    def run(self, args: list[str], opts: argparse.Namespace) -> None:  # noqa: ARG002 - all in opts
        """Run a subcommand; sets the exit code."""
        self.exitcode = FAILED
        _prepare_streams()
        try:
            self.exitcode = self._run(opts)
            sys.stdout.flush()  # here, where a closed pipe is noticed
        except BloomError as error:
            self.exitcode = NO if isinstance(error, NothingThereError) else FAILED
            complain(in_words(str(error), WORDS))
        except KeyboardInterrupt:
            complain("interrupted")
        except BrokenPipeError:
            # The reader has had enough, as `head` has; Python would complain when it ends.
            self.exitcode = BROKEN_PIPE
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:
            # Of a spider's module or a fingerprinter. Python exits with 1, which is "not seen".
            logger.debug("scrapy bloom failed", exc_info=True)
            complain(f"{type(error).__name__}: {error} (-L DEBUG shows where)")

    def _run(self, opts: argparse.Namespace) -> int:
        assert self.settings is not None  # noqa: S101 - Scrapy sets it
        if self.crawler_process is None:
            # Older versions of Scrapy do this for all commands, later ones for those that crawl.
            configure_logging(self.settings)
            AddonManager.load_pre_crawler_settings(self.settings)
        exit_code: int = opts.run(CommandSession(self.settings, opts))
        return exit_code


def _prepare_streams() -> None:
    """Make streams that were closed or that know some characters only fit to be used."""
    if sys.stdin is None:  # as after `<&-`
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - until the end
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            # In an ASCII terminal, escapes take the place of other characters.
            stream.reconfigure(errors="backslashreplace")


# -- options --


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--spider", metavar="NAME", help="by default the project's only one")
    # Scrapy's, which otherwise stand before the subcommand. Unset, they leave what stands there.
    group = parser.add_argument_group("global options")
    group.add_argument(
        *("-s", "--set"),
        dest="set_after",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set/override setting (may be repeated)",
    )
    suppress = argparse.SUPPRESS
    group.add_argument("-L", "--loglevel", metavar="LEVEL", default=suppress, help="log level")
    group.add_argument("--logfile", metavar="FILE", default=suppress, help="log file")
    group.add_argument("--nolog", action="store_true", default=suppress, help="no log")


def _plan_options(parser: argparse.ArgumentParser) -> None:
    for name, text in PLAN_OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=text)


def _filter_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", help="the filter's key (by default BLOOM_KEY)")
    parser.add_argument("--window", metavar="NAME", help="the filter of a window of BLOOM_WINDOWS")


def _info_options(parser: argparse.ArgumentParser) -> None:
    _filter_options(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="show the blocks, too")
    parser.add_argument(
        "--measure",
        nargs="?",
        const="100000",
        metavar="N",
        help="say how likely a new URL is hidden now, by N random fingerprints (default 100,000)",
    )


def _check_options(parser: argparse.ArgumentParser) -> None:
    _filter_options(parser)
    parser.add_argument("urls", nargs="*", metavar="URL", help="- reads them from stdin")
    parser.add_argument(
        "--bloom-key",
        action="append",
        default=[],
        metavar="TEXT",
        help='meta["bloom_key"] of a request (may be repeated)',
    )
    parser.add_argument(
        "--item",
        action="append",
        default=[],
        metavar="TEXT",
        help="item as the library has it, such as add(TEXT) records (may be repeated)",
    )


def _change_options(parser: argparse.ArgumentParser) -> None:
    _filter_options(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do it without asking")


def _migrate_options(parser: argparse.ArgumentParser) -> None:
    _change_options(parser)
    migrate.add_options(parser)


def _export_options(parser: argparse.ArgumentParser) -> None:
    _filter_options(parser)
    transfer.add_export_options(parser)


def _import_options(parser: argparse.ArgumentParser) -> None:
    _filter_options(parser)
    transfer.add_import_options(parser)


def _pending_options(parser: argparse.ArgumentParser) -> None:
    _change_options(parser)
    pending.add_options(parser)


# -- plan --


def _plan(session: CommandSession) -> int:
    wanted = FilterOptions(**session.settings.parameters())
    result = forecast(wanted.new_header(), wanted.config(DEFAULTS))
    result = replace(result, recrawl=in_words(result.recrawl, WORDS))
    if session.tables is None:
        print_json(to_json(result))
    else:
        session.tables.show_plan(result)
    return FINE


# -- info --


def _info(session: CommandSession) -> int:
    windows = [session.window] if session.is_chosen else [LASTING, *session.settings.windows]
    documents = []
    with session.connect() as server:
        for name in windows:
            snapshot = server.look(name)
            document = {"name": name, "key": server.key(name), "exists": snapshot is not None}
            if snapshot is not None:
                document |= _describe(session, server, name, snapshot)
            elif session.tables is not None:
                session.tables.show_absent(name, server.address, server.key(name))
            documents.append(document)
        if session.tables is None:
            print_json({"address": server.address, "filters": documents})
    return FINE if any(document["exists"] for document in documents) else NO


def _describe(
    session: CommandSession, server: Server, name: str, snapshot: Snapshot
) -> dict[str, Any]:
    """Show a filter, or return it as JSON has it."""
    key, lost = server.key(name), snapshot.header.blocks - len(snapshot.rings)
    info = describe(key, snapshot, lost)
    numbers = sorted(snapshot.rings) if session.opts.verbose else []
    blocks = {number: describe(key, snapshot, block=number) for number in numbers}
    measured = None if session.opts.measure is None else _measure(session, server, name)
    if session.tables is not None:
        session.tables.show_info(name, server.address, info, blocks, measured)
        return {}
    document: dict[str, Any] = to_json(info)
    if measured is not None:
        document["measured"] = to_json(measured)
    if blocks:
        document["per_block"] = [{"block": n, **to_json(block)} for n, block in blocks.items()]
    return document


def _measure(session: CommandSession, server: Server, name: str) -> Measurement:
    probes = whole_number("--measure", session.opts.measure, 1, MAX_PROBES, "fingerprints to test")
    with session.progress("fingerprints tested", probes) as advance:
        return server.filter(name).measure(probes, progress=advance)


# -- rotate and clear --


def _rotate(session: CommandSession) -> int:
    name = session.window
    with session.connect() as server:
        snapshot, key = server.read(name), server.key(name)
        if describe(key, snapshot).window is None:
            raise ConfigurationError(
                f"the filter {key!r} is stored without a window, so it has nothing to rotate: set "
                "BLOOM_RECRAWL_AFTER (the next crawl applies it), or clear the filter"
            )
        forgotten, text = _forgotten_by_rotation(snapshot)
        if not session.confirm(f"Rotate {key!r} on {server.address}, which forgets {text}"):
            return NO
        with session.progress("rotating blocks", snapshot.header.blocks) as advance:
            bloom = server.filter(name, lambda event, _: advance(event == ROTATED))
            bloom.rotate()
        return _report(session, server, name, bloom.info(), forgotten)


def _forgotten_by_rotation(snapshot: Snapshot) -> tuple[int, str]:
    """Return how many URLs a rotation forgets, and say which."""
    count, opened = 0, []
    for block, ring in snapshot.rings.items():
        counts = snapshot.counts[block]
        after = ring.rotate(snapshot.now, counts)
        count += ring.count(counts) - after.count(counts)
        opened += [old.opened for old in ring.generations if old not in after.generations]
    if not opened:
        return 0, "nothing (there are fewer generations than the window has)"
    return count, f"the {count:,} URLs of the generation opened {iso(min(opened))}"


def _clear(session: CommandSession) -> int:
    name = session.window
    with session.connect() as server:
        before, bloom = describe(server.key(name), server.read(name)), server.filter(name)
        text = f"all its {before.count:,} URLs"
        if before.claims:
            text += f" and {before.claims:,} claims"
        if not session.confirm(f"Clear {bloom.key!r} on {server.address}, which forgets {text}"):
            return NO
        bloom.clear()
        return _report(session, server, name, bloom.info(), before.count)


def _report(
    session: CommandSession, server: Server, name: str, after: FilterInfo, forgotten: int
) -> int:
    """Say what a filter is after it was changed."""
    if session.tables is None:
        head = {"address": server.address, "name": name, "urls_forgotten": forgotten}
        print_json(head | to_json(after))
    else:
        session.tables.show(
            f"{after.key} on {server.address}: {forgotten:,} URLs forgotten, {after.count:,} "
            "remembered"
        )
    return FINE


# -- check --


def _check(session: CommandSession) -> int:
    asked, seen = check.check(session)
    return FINE if asked == seen else NO


# -- pending --


def _pending(session: CommandSession) -> int:
    return FINE if pending.run(session) else NO


# -- delete, export and import --


def _delete(session: CommandSession) -> int:
    return FINE if delete.run(session) else NO


def _export(session: CommandSession) -> int:
    transfer.export_filter(session)
    return FINE


def _import(session: CommandSession) -> int:
    transfer.import_filter(session)
    return FINE


#: Name -> (function, its options, what it does).
SUBCOMMANDS: dict[
    str, tuple[Callable[[CommandSession], int], Callable[[argparse.ArgumentParser], None], str]
] = {
    "plan": (_plan, _plan_options, "say what a filter would take; needs no server"),
    "info": (_info, _info_options, "show what filters hold; changes nothing"),
    "check": (_check, _check_options, "say whether URLs are seen, since when and until when"),
    "migrate": (migrate.run, _migrate_options, "record what other dupefilters have seen"),
    "pending": (_pending, _pending_options, "list URLs that are claimed, and end claims"),
    "rotate": (_rotate, _change_options, "open a new generation now; the oldest may be forgotten"),
    "clear": (_clear, _change_options, "forget all URLs of a filter"),
    "delete": (_delete, _change_options, "delete a filter with all its keys"),
    "export": (_export, _export_options, "save a filter to a file, also while it is in use"),
    "import": (_import, _import_options, "load a filter from a file"),
}
