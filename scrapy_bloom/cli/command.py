"""The command ``scrapy bloom``: dispatches to one module per subcommand.

Filters are used as they are stored: no setting of the project's changes them from here.
"""

import argparse
import io
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, ClassVar

from scrapy.addons import AddonManager
from scrapy.commands import ScrapyCommand, ScrapyHelpFormatter
from scrapy.exceptions import UsageError
from scrapy.utils.log import configure_logging

from scrapy_bloom import __version__
from scrapy_bloom.bloom.errors import BloomError, in_words
from scrapy_bloom.cli.acl import acl
from scrapy_bloom.cli.change import clear, delete, rotate, settings
from scrapy_bloom.cli.check import check
from scrapy_bloom.cli.claims import failed, gone, pending
from scrapy_bloom.cli.doctor import doctor
from scrapy_bloom.cli.files import export, import_
from scrapy_bloom.cli.info import info, list_
from scrapy_bloom.cli.migrate import migrate
from scrapy_bloom.cli.monitor import metrics, watch
from scrapy_bloom.cli.output import complain
from scrapy_bloom.cli.plan import PLAN_OPTIONS, plan
from scrapy_bloom.cli.recrawl import recrawl
from scrapy_bloom.cli.report import report
from scrapy_bloom.cli.server import NothingThereError
from scrapy_bloom.cli.session import CommandSession, DeclinedError, ExitCode, Subcommand
from scrapy_bloom.settings import WORDS

logger = logging.getLogger(__name__)

EXIT_CODES = (
    "Exit codes: 0 fine; 1 there is no such filter, doctor found a problem, a URL is not seen, an "
    "entry is no fingerprint or URL, or you said no; 2 wrong usage or settings, the server or a "
    "file cannot be used, or recorded entries are not seen afterwards; 141 the reader of "
    "the output has closed it."
)

#: Groups of subcommands, in the order of the help: what those of a group do, and they.
GROUPS: dict[str, tuple[str, Sequence[Subcommand]]] = {
    "look": (
        "show something; change nothing",
        (plan, info, metrics, report, watch, check, pending, failed, gone, list_, doctor, acl),
    ),
    "change": ("change or delete a filter", (recrawl, settings, rotate, clear, delete)),
    "move": (
        "move what is remembered into a filter, or a filter into a file and back",
        (migrate, export, import_),
    ),
}
SUBCOMMANDS = {one.name: one for _, members in GROUPS.values() for one in members}


class _Help(argparse.RawDescriptionHelpFormatter, ScrapyHelpFormatter):
    """Leaves the lines of the groups as they are."""


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
        return (
            "Plan, check, inspect, query, fill, rotate, clear, delete, save and load Bloom filters"
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add Scrapy's options and the subcommands."""
        parser.add_argument("--version", action="version", version=f"scrapy-bloom {__version__}")
        formatter, width = parser.formatter_class, shutil.get_terminal_size().columns - 2
        parser.formatter_class = _Help
        parser.description = textwrap.fill(self.long_desc(), width)
        parser.epilog = textwrap.fill(f"{EXIT_CODES} For more: scrapy bloom <subcommand> -h", width)
        commands = parser.add_subparsers(
            title="Subcommands",
            description=_grouped(width),
            prog="scrapy bloom",
            dest="command",
        )
        for name, one in SUBCOMMANDS.items():
            subcommand = commands.add_parser(
                name,
                description=f"{one.help[0].upper()}{one.help[1:]}.",
                epilog=EXIT_CODES,
                formatter_class=formatter,
            )
            one.add_options(subcommand)
            subcommand.add_argument("--json", action="store_true", help="print one JSON document")
            subcommand.add_argument(
                "--spider", metavar="NAME", help="by default the project's only one"
            )
            super().add_options(subcommand)

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Turn options into settings."""
        if args:
            raise UsageError(f"unrecognized arguments: {' '.join(args)}")
        if opts.command is None:
            raise UsageError
        super().process_options(args, opts)
        given = {f"BLOOM_{name.upper()}": getattr(opts, name, None) for name in PLAN_OPTIONS}
        given["BLOOM_KEY"] = getattr(opts, "key", None)
        given = {name: value for name, value in given.items() if value is not None}
        # Settings with a window in runs are refused without a run. Only migrate creates a filter.
        given["BLOOM_RUN"] = "scrapy bloom"
        # The standard output is for the answer.
        given["LOG_STDOUT"] = False
        assert self.settings is not None  # noqa: S101 - Scrapy sets it
        self.settings.setdict(given, priority="cmdline")

    def run(self, args: list[str], opts: argparse.Namespace) -> None:  # noqa: ARG002 - all in opts
        """Run a subcommand; sets the exit code."""
        self.exitcode = ExitCode.FAILED
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # An ASCII terminal gets escapes for other characters.
                stream.reconfigure(errors="backslashreplace")
        try:
            self.exitcode = self._run(opts) or ExitCode.FINE
            print(end="", flush=True)  # a closed pipe is noticed here
        except DeclinedError:
            self.exitcode = ExitCode.NO
        except BloomError as error:
            self.exitcode = ExitCode.NO if isinstance(error, NothingThereError) else ExitCode.FAILED
            complain(in_words(str(error), WORDS))
        except KeyboardInterrupt:
            complain("interrupted")
        except BrokenPipeError:
            # The reader, such as `head`, has ended. Python would complain when it flushes.
            self.exitcode = ExitCode.BROKEN_PIPE
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:
            # From a spider's module or a fingerprinter. Python would exit with 1: "not seen".
            logger.debug("scrapy bloom failed", exc_info=True)
            complain(f"{type(error).__name__}: {error} (-L DEBUG shows where)")

    def _run(self, opts: argparse.Namespace) -> ExitCode | None:
        assert self.settings is not None  # noqa: S101 - Scrapy sets it
        if self.crawler_process is None:
            # Older versions of Scrapy do this for all commands, later ones for those that crawl.
            configure_logging(self.settings)
            AddonManager.load_pre_crawler_settings(self.settings)
        return SUBCOMMANDS[opts.command].run(CommandSession(self.settings, opts))


def _grouped(width: int) -> str:
    """Return the subcommands, each below the name of its group."""

    def entry(name: str, text: str, indent: int) -> list[str]:
        head, below = f"{' ' * indent}{name}".ljust(20) + "  ", " " * 22
        # The help indents all of it by two more.
        return textwrap.wrap(text, width - 2, initial_indent=head, subsequent_indent=below)

    lines: list[str] = []
    for group, (meaning, members) in GROUPS.items():
        lines += entry(group, meaning, 2)
        for one in members:
            lines += entry(one.name, one.help, 4)
    return "\n".join(lines)
