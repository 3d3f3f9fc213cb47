"""The command ``scrapy bloom``: finds the subcommand, and tells what went wrong in one line."""

import argparse
import io
import logging
import sys
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn

from scrapy.addons import AddonManager
from scrapy.commands import ScrapyCommand, ScrapyHelpFormatter
from scrapy.exceptions import UsageError
from scrapy.utils.log import configure_logging

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.cli.base import Command, ExitCode
from scrapy_bloom.cli.check import CHECK
from scrapy_bloom.cli.clear import CLEAR
from scrapy_bloom.cli.info import INFO
from scrapy_bloom.cli.output import complain, quoted, silence
from scrapy_bloom.cli.pending import PENDING
from scrapy_bloom.cli.project import Project
from scrapy_bloom.cli.recrawl import RECRAWL
from scrapy_bloom.cli.stored import NoFilterError

logger = logging.getLogger(__name__)

COMMANDS = {one.name: one for one in (INFO, CHECK, PENDING, RECRAWL, CLEAR)}
EXIT_CODES = (
    "Exit codes: 0 fine; 1 there is no such filter, a URL isn't remembered, or you said no; "
    "2 the arguments or settings are wrong, or the server can't be used."
)


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
        return "Look at the Bloom filter of a spider, and change it"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the subcommands, each with Scrapy's options."""
        parser.formatter_class = _Help
        parser.epilog = f"{EXIT_CODES}\nMore: scrapy bloom <subcommand> -h"
        commands = parser.add_subparsers(
            title="Subcommands",
            metavar="",
            prog="scrapy bloom",
            dest="command",
            parser_class=_Parser,
        )
        for one in COMMANDS.values():
            text = f"{one.help[0].upper()}{one.help[1:]}."
            examples = "\n".join(f"  {line}" for line in one.examples.splitlines())
            own = commands.add_parser(
                one.name,
                help=one.help,
                description=text,
                epilog=f"Examples:\n{examples}\n\n{EXIT_CODES}",
                formatter_class=_Help,
            )
            one.add_options(own)
            own.add_argument("--spider", metavar="NAME", help="the spider (default: the only one)")
            own.add_argument("--key", help="the filter's key (default: BLOOM_KEY)")
            own.add_argument("--json", action="store_true", help="print JSON instead of a table")
            super().add_options(own)
        commands.choices = _Names(commands.choices)

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Turn options into settings."""
        if opts.command is None:
            raise UsageError
        if args:
            _fail(
                f"{quoted(args[0])} isn't an argument of {opts.command}. See scrapy bloom "
                f"{opts.command} -h"
            )
        try:
            super().process_options(args, opts)
        except UsageError as error:
            _fail(str(error))
        assert self.settings is not None
        # The standard output is for the answer.
        self.settings.set("LOG_STDOUT", False, priority="cmdline")
        if opts.key is not None:
            self.settings.set("BLOOM_KEY", opts.key, priority="cmdline")

    def run(self, args: list[str], opts: argparse.Namespace) -> None:  # noqa: ARG002 - all in opts
        """Run a subcommand, and set the exit code."""
        self.exitcode = ExitCode.FAILED
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # the terminal may know ASCII only
        try:
            self.exitcode = self._run(COMMANDS[opts.command], opts)
            print(end="", flush=True)  # a closed pipe is noticed here
        except NoFilterError as error:
            self.exitcode = ExitCode.NO
            complain(str(error))
        except BloomError as error:
            complain(str(error))
        except KeyboardInterrupt:
            complain("interrupted")
        except BrokenPipeError:
            silence()
        except Exception as error:  # for example, a spider's module can't be imported
            logger.debug("scrapy bloom failed", exc_info=True)
            complain(f"{type(error).__name__}: {error} (-L DEBUG shows where)")

    def _run(self, command: Command, opts: argparse.Namespace) -> ExitCode:
        assert self.settings is not None
        if self.crawler_process is None:  # older versions of Scrapy do this for all commands
            configure_logging(self.settings)
            AddonManager.load_pre_crawler_settings(self.settings)
        return command.run(Project(self.settings, opts), opts)


class _Help(argparse.RawDescriptionHelpFormatter, ScrapyHelpFormatter):
    """Leaves the lines of examples as they are."""


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong with arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """Print an error, and exit."""
        _fail(f"{message}. See {self.prog} -h")


class _Names(dict[str, Any]):
    """The subcommands. Asked for another name, it tells which one is meant."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            close = get_close_matches(str(name), self, n=1, cutoff=0.5)
            hint = f"Did you mean {close[0]}?" if close else f"Choose one of {', '.join(self)}"
            _fail(f"{quoted(str(name))} isn't a subcommand. {hint}")
        return True


def _fail(text: str) -> NoReturn:
    complain(text)
    sys.exit(ExitCode.FAILED)
