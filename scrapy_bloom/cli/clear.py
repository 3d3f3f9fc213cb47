"""``scrapy bloom clear``: forgets the URLs of a filter.

It asks you first, unless you add `--yes`. It deletes pending requests, too, unless you name a
window. If a crawl is running, the pages that it finishes afterwards are remembered.
"""

import argparse
import sys

from scrapy.settings import Settings

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.cli.output import plural, quoted, report
from scrapy_bloom.cli.project import target

HELP = "forget the URLs of a filter, after asking you"
EXAMPLES = """\
scrapy bloom clear
scrapy bloom clear --window 1-day --yes"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("--window", metavar="W", help="forget only this window, for example 1-day")
    parser.add_argument("-y", "--yes", action="store_true", help="clear without asking")


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Forget everything, or one window; return whether the user agrees."""
    with target(settings, opts).connect() as stored:
        if opts.window not in (None, *stored.windows):
            text = f"--window {quoted(opts.window)} isn't a window of this filter"
            raise ConfigurationError(f"{text}. Choose one of {', '.join(stored.windows)}")
        views = [v for (window, _), v in stored.views.items() if opts.window in (None, window)]
        count = sum(view.ring.count(view.tested) for view in views)
        what = plural(count, "URL")
        if opts.window is not None:
            what += f" in the window {opts.window!r}"
        elif pending := sum(1 for name in stored.spiders for _ in stored.scan(name)):
            what += f" and {plural(pending, 'pending request')}"
        if not opts.yes and not _agrees(f"Forget {what} of {stored}?"):
            return False
        stored.bloom.clear(opts.window)
    head = {**stored.head, "window": opts.window, "forgotten": count}
    report(opts, head, [], f"{stored}: {what} forgotten")
    return True


def _agrees(question: str) -> bool:
    """Ask at the terminal."""
    if not sys.stdin.isatty():
        raise ConfigurationError("Nobody can answer, because this isn't a terminal. Add --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
