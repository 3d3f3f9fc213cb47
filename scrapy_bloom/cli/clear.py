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
        rings = [
            ring for (window, _), ring in stored.rings.items() if opts.window in (None, window)
        ]
        count = sum(ring.count(stored.live(ring)) for ring in rings)
        window = f" in the window {opts.window!r}" if opts.window else ""
        question = f"Forget {plural(count, 'URL')}{window} of {stored.bloom.key}"
        if not opts.yes and not _agrees(f"{question} on {stored.bloom.label}?"):
            return ExitCode.NO
        for name in {ring.window for ring in rings}:
            stored.bloom.run(stored.bloom.session.clear(name))
    if opts.json:
        show_json({"key": stored.bloom.key, "window": opts.window, "forgotten": count})
    else:
        print(f"{stored.bloom.key}: {plural(count, 'URL')}{window} forgotten")
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
