"""``scrapy bloom plan``: what a filter would take. Needs no server."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.forecast import Forecast, Load, capacity_for, forecast, urls_in_all
from scrapy_bloom.bloom.model.header import WRITE_NEWEST
from scrapy_bloom.bloom.options import DEFAULTS, OPTIONS, FilterOptions
from scrapy_bloom.bloom.validators import MAX_CAPACITY, whole_number
from scrapy_bloom.cli import output
from scrapy_bloom.cli.output import Column, size, to_json, two_digits
from scrapy_bloom.cli.session import CommandSession, option, subcommand
from scrapy_bloom.settings import FILTER_SETTINGS, LIBRARY_ONLY

#: Options that ``plan`` takes: settings that say how large a filter is, and those of the library.
PLAN_OPTIONS = {
    setting: OPTIONS[name].help
    for name, setting in FILTER_SETTINGS.items()
    if name not in ("stagger", "run")
}


@subcommand(
    "say what a filter would take; needs no server",
    option("--urls", metavar="N", help="URLs that the site has in all; says which capacity to set"),
    option("--new-a-month", metavar="N", help="URLs that come every month (with --urls)"),
    *(
        option(f"--{name.replace('_', '-')}", metavar="VALUE", help=text)
        for name, text in {**PLAN_OPTIONS, **{n: OPTIONS[n].help for n in LIBRARY_ONLY}}.items()
    ),
)
def plan(session: CommandSession) -> None:
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
    document: dict[str, Any] = to_json(result)
    text = as_text(result)
    if site is not None:
        urls, new_a_month = site
        in_all = urls_in_all(*site, config.schedule)
        document["site"] = {"urls": urls, "new_a_month": new_a_month, "in_all": in_all}
        facts = {
            "URLs in all": f"{in_all:,} in {config.window or 'a year'}",
            "set": f"BLOOM_CAPACITY = {config.capacity:_} (URLs a generation)",
        }
        text = f"{output.under('For this site', facts)}\n\n{text}"
    session.report(document, text)


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


def as_text(f: Forecast) -> str:
    """Return what a filter will take."""
    places = output.places(f.counting)
    facts = {
        "window": output.window_and_period(f.window, f.period, f.ring),
        "a page is crawled again": f.recrawl,
        "generations": f"{f.generations}",
        "URLs in all": f"{f.capacity_in_all:,}",
        "hash functions (k)": f"{f.num_hashes}",
        "blocks": f"{f.blocks:,}",
        "a bitmap": f"{size(f.opened_memory / f.blocks)} ({f.num_bits:,} {places})",
        "a generation": size(f.opened_memory),
        "all generations": f"{size(f.loads[0].memory)} at capacity",
        "limit": "none" if f.max_memory is None else size(f.max_memory),
        "bits per URL": f"{f.loads[0].bits_per_url:.1f} at capacity",
        "new pages missed": f"{output.expected(f.missed_at_most)} in a window at most",
    }
    heading = f"A filter for {f.capacity:,} URLs a generation at an error rate of {f.error_rate:g}"
    return "\n".join((output.under(heading, facts), "", *output.table(LOADS, f.loads)))


#: What a filter takes with some URLs.
LOADS: Sequence[Column[Load]] = (
    Column("URLs a generation", lambda load: f"{load.urls:,}"),
    Column("a generation", lambda load: size(load.generation_memory)),
    Column("all", lambda load: size(load.memory)),
    Column("bits per URL", lambda load: f"{load.bits_per_url:.1f}"),
    Column("error rate", lambda load: two_digits(load.error_rate)),
    Column("has room", lambda load: "yes" if load.has_room else "no"),
)
