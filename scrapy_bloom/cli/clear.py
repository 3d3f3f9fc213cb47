"""``scrapy bloom clear``: forgets what a filter remembers."""

import argparse
import sys

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.cli.base import Command, ExitCode
from scrapy_bloom.cli.output import listed, plural, quoted, show_json
from scrapy_bloom.cli.project import Project


def run(project: Project, opts: argparse.Namespace) -> ExitCode:
    """Forget all URLs of a filter, or of one window, if the user agrees."""
    with project.target().connect() as stored:
        stored.read()
        if opts.window not in (None, *stored.windows):
            raise ConfigurationError(
                f"--window {quoted(opts.window)} isn't a window of this filter. Choose one of: "
                f"{listed(stored.windows)}"
            )
        views = [v for (window, _), v in stored.views.items() if opts.window in (None, window)]
        count = sum(view.ring.count(view.tested) for view in views)
        what = plural(count, "URL")
        if opts.window is not None:
            what += f" in the window {opts.window!r}"
        elif pending := sum(1 for name in stored.spiders for _ in stored.scan(name)):
            what += f" and {plural(pending, 'pending request')}"
        where = f"{stored.bloom.key} on {stored.bloom.label}"
        if not opts.yes and not _agrees(f"Forget {what} of {where}?"):
            return ExitCode.NO
        stored.bloom.clear(opts.window)
    if opts.json:
        show_json({"key": stored.bloom.key, "window": opts.window, "forgotten": count})
    else:
        print(f"{where}: {what} forgotten")
    return ExitCode.FINE


def _agrees(question: str) -> bool:
    """Ask at the terminal."""
    if not sys.stdin.isatty():
        raise ConfigurationError("Not a terminal: add --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--window", metavar="W", help="forget only this window, for example 1-day")
    parser.add_argument("-y", "--yes", action="store_true", help="don't ask")


CLEAR = Command(
    "clear",
    "forget what a filter remembers; asks first",
    """\
scrapy bloom clear
scrapy bloom clear --window 1-day --yes""",
    run,
    _add_options,
)
