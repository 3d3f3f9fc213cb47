"""``scrapy bloom clear``: forgets the URLs of a filter.

It asks you first, unless you add `--yes`. It deletes pending requests, too, unless you name a
window. With `--pending` it deletes only those of the spider, and the filter keeps its URLs. Later
runs crawl the pages of these requests only if they read another page that links to them. If a crawl
is running, it still crawls the requests that it has. The pages that it finishes are remembered, and
those that fail are pending again. But if you stop it before, no run picks up the rest.
"""

import argparse
import sys

from scrapy.settings import Settings

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.protocol import whole
from scrapy_bloom.cli.output import plural, quoted, report
from scrapy_bloom.cli.project import target

HELP = "forget a filter's URLs, or its pending requests, after asking you"
EXAMPLES = """\
scrapy bloom clear
scrapy bloom clear --window 1-day --yes
# keep the memory
scrapy bloom clear --pending"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--window", metavar="W", help="forget only this window, for example 1-day")
    text = "delete only the spider's pending requests, and forget no URL"
    only.add_argument("--pending", action="store_true", help=text)
    parser.add_argument("-y", "--yes", action="store_true", help="clear without asking")


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Forget everything, one window or the pending requests; return whether the user agrees."""
    chosen = target(settings, opts)
    with chosen.connect() as stored:
        if opts.window not in (None, *stored.windows):
            text = f"--window {quoted(opts.window)} isn't a window of this filter"
            raise ConfigurationError(f"{text}. Choose one of {', '.join(stored.windows)}")
        views = [v for (window, _), v in stored.views.items() if opts.window in (None, window)]
        count = 0 if opts.pending else sum(view.ring.count(view.tested) for view in views)
        spiders = [stored.spider(chosen.spider)] if opts.pending else stored.spiders
        pending = 0 if opts.window else sum(1 for name in spiders for _ in stored.scan(name))
        text, requests = plural(count, "URL"), plural(pending, "pending request")
        text = requests if opts.pending else f"{text} and {requests}" if pending else text
        text += f" in the window {opts.window!r}" if opts.window else ""
        if not opts.yes and not _agrees(f"Forget {text} of {stored}?"):
            return False
        if opts.pending:
            stored.bloom.run(whole.drop_claims(stored.bloom.session, spiders[0]))
        else:
            stored.bloom.clear(opts.window)
    head = {**stored.head, "window": opts.window, "forgotten": count, "pending": pending}
    report(opts, head, [], f"{stored}: {text} forgotten")
    return True


def _agrees(question: str) -> bool:
    """Ask at the terminal."""
    if not sys.stdin.isatty():
        raise ConfigurationError("Nobody can answer, because this isn't a terminal. Add --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
