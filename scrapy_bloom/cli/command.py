"""Finds the subcommand of ``scrapy bloom``, and explains each failure in one line."""

import argparse
import os
import sys
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError
from scrapy.utils.log import configure_logging

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.cli import check, clear, doctor, info, migrate, pending, plan, recrawl, report
from scrapy_bloom.cli.output import complain, quoted
from scrapy_bloom.cli.stored import NoFilterError

#: Each has HELP, EXAMPLES, and the functions ``run`` and, perhaps, ``add_options``.
_ALL = (info, check, pending, recrawl, doctor, clear, migrate, plan, report)
COMMANDS = {module.__name__.rpartition(".")[2]: module for module in _ALL}
#: The exit codes.
FINE, NO, FAILED = 0, 1, 2
EXIT_CODES = {
    FINE: "the command succeeded",
    NO: "there is no such filter, a URL isn't remembered, a problem was found, or you said no",
    FAILED: "the arguments or settings are wrong, or the server can't be used",
}


class BloomCommand(ScrapyCommand):
    """``scrapy bloom``, in a project and outside."""

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        """Return the arguments, as Scrapy shows them."""
        return "<subcommand> [options]"

    def short_desc(self) -> str:
        """Return a line for Scrapy's list of commands."""
        return "Look at the Bloom filter of a spider, or change it"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the subcommands, each with Scrapy's options."""
        self._parser = parser
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        codes = "\n".join(f"  {code}  {text}" for code, text in EXIT_CODES.items())
        parser.epilog = f"Exit codes:\n{codes}\n\nMore: scrapy bloom <subcommand> -h"
        commands = parser.add_subparsers(
            title="Subcommands", metavar="", prog="scrapy bloom", dest="name", parser_class=_Parser
        )
        for name, module in COMMANDS.items():
            examples = module.EXAMPLES.replace("\n", "\n  ")
            own = commands.add_parser(
                name,
                help=module.HELP,
                description=f"{module.HELP[0].upper()}{module.HELP[1:]}.",
                epilog=f"Examples:\n  {examples}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            if hasattr(module, "add_options"):
                module.add_options(own)
            own.add_argument("--spider", metavar="NAME", help="choose a spider of the project")
            own.add_argument("--key", help="name the filter (default: BLOOM_KEY)")
            own.add_argument("--json", action="store_true", help="print JSON instead of a table")
            super().add_options(own)
        commands.choices = _Names(commands.choices)

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Turn options into settings."""
        if opts.name is None:
            self._parser.print_help()
            sys.exit(FINE)
        if args:
            _fail(f"{quoted(args[0])} isn't an argument. See scrapy bloom {opts.name} -h")
        try:
            super().process_options(args, opts)
        except (UsageError, OSError) as error:
            _fail(str(error))
        assert self.settings is not None
        given = {"BLOOM_KEY": opts.key} if opts.key is not None else {}
        # The standard output is for the answer.
        self.settings.setdict({"LOG_STDOUT": False, **given}, priority="cmdline")

    def run(self, args: list[str], opts: argparse.Namespace) -> None:  # noqa: ARG002 - all in opts
        """Run a subcommand, and set the exit code."""
        self.exitcode = FAILED
        try:
            configure_logging(self.settings)
            self.exitcode = FINE if COMMANDS[opts.name].run(self.settings, opts) else NO
            print(end="", flush=True)  # a closed pipe is noticed here
        except BrokenPipeError:  # else Python complains when it flushes
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.exitcode = FINE
        except KeyboardInterrupt as error:
            complain(str(error) or "interrupted")
        except BloomError as error:
            self.exitcode = NO if isinstance(error, NoFilterError) else FAILED
            complain(str(error))
        except OSError as error:
            complain(f"{quoted(error.filename)} can't be opened ({error.strerror}). Check the path")
        except Exception as error:  # for example, a spider's module can't be imported
            complain(f"{type(error).__name__}: {error}")


class _Parser(argparse.ArgumentParser):
    """Explains wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """Print an error, and exit."""
        _fail(f"{message}{'' if message.endswith('?') else '.'} See {self.prog} -h")


class _Names(dict[str, Any]):
    """The subcommands. Asked for another name, it tells which one is meant."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            close = get_close_matches(str(name), self, n=1, cutoff=0.5)
            names = f"Choose one of {', '.join(self)}, and write options after it"
            hint = f"Did you mean {close[0]}?" if close else names
            _fail(f"{quoted(name)} isn't a subcommand. {hint}")
        return True


def _fail(text: str) -> NoReturn:
    complain(text)
    sys.exit(FAILED)
