"""``scrapy bloom plan``: what a filter would take. Needs no server."""

import argparse
from dataclasses import replace
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError, in_words
from scrapy_bloom.bloom.model.forecast import capacity_for, for_site, forecast
from scrapy_bloom.bloom.model.header import WRITE_NEWEST
from scrapy_bloom.bloom.options import DEFAULTS, OPTIONS, FilterOptions
from scrapy_bloom.bloom.validators import MAX_CAPACITY, whole_number
from scrapy_bloom.cli import render
from scrapy_bloom.cli.session import CommandSession, ExitCode, to_json
from scrapy_bloom.settings import FILTER_SETTINGS, LIBRARY_ONLY, WORDS

HELP = "say what a filter would take; needs no server"
#: Options that ``plan`` takes: settings that say how large a filter is, and those of the library.
PLAN_OPTIONS = {
    setting: OPTIONS[name].help
    for name, setting in FILTER_SETTINGS.items()
    if name not in ("stagger", "run")
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--urls", metavar="N", help="URLs that the site has in all; says which capacity to set"
    )
    parser.add_argument(
        "--new-a-month", metavar="N", help="URLs that come every month (with --urls)"
    )
    others = {name: OPTIONS[name].help for name in LIBRARY_ONLY}
    for name, text in (PLAN_OPTIONS | others).items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=text)


def run(session: CommandSession) -> ExitCode:
    """Print the plan.

    Raises:
        ConfigurationError: the filter is impossible, or the options contradict each other.
    """
    own = {
        name: OPTIONS[name].parse(f"--{name}", value)
        for name in LIBRARY_ONLY
        if (value := getattr(session.opts, name)) is not None
    }
    wanted = FilterOptions(**session.settings.parameters(), **own)
    site = _site(session.opts)
    if site is not None:
        config = wanted.config(DEFAULTS)
        if site[1] and config.schedule is not None and config.schedule.counts_runs:
            raise ConfigurationError(
                f"--new-a-month needs a window of time, and BLOOM_RECRAWL_AFTER is "
                f'"{config.window}": leave it out, or say how long that is with --recrawl-after'
            )
        capacity = capacity_for(*site, config, wanted.ring or WRITE_NEWEST)
        wanted = replace(wanted, capacity=capacity)
    header, config = wanted.new_header(), wanted.config(DEFAULTS)
    result = forecast(header, config)
    result = replace(result, recrawl=in_words(result.recrawl, WORDS))
    document: dict[str, Any] = to_json(result)
    text = render.plan(result)
    if site is not None:
        of_site = for_site(*site, header, config)
        document["site"] = to_json(of_site)
        text = f"{render.site(of_site, result)}\n\n{text}"
    session.report(document, text)
    return ExitCode.FINE


def _site(opts: argparse.Namespace) -> tuple[int, int] | None:
    """Return the URLs of a site, and new ones a month; None if no option says so.

    Raises:
        ConfigurationError: they are no numbers, or the capacity is given too.
    """
    if opts.urls is None and opts.new_a_month is None:
        return None
    if opts.urls is None:
        raise ConfigurationError("--new-a-month goes with --urls: how many URLs has the site now?")
    if opts.capacity is not None:
        raise ConfigurationError(
            "--capacity and --urls both say how large the filter is: remove one of them"
        )
    urls = whole_number("--urls", opts.urls, 1, MAX_CAPACITY, "the URLs of the site in all")
    new = whole_number("--new-a-month", opts.new_a_month or 0, 0, MAX_CAPACITY, "URLs a month")
    return urls, new
