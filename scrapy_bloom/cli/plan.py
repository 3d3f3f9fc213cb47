"""``scrapy bloom plan``: what a filter would take. Needs no server."""

import argparse
from dataclasses import replace

from scrapy_bloom.bloom.errors import in_words
from scrapy_bloom.bloom.model.forecast import forecast
from scrapy_bloom.bloom.options import DEFAULTS, OPTIONS, FilterOptions
from scrapy_bloom.cli import render
from scrapy_bloom.cli.session import CommandSession, ExitCode, to_json
from scrapy_bloom.settings import ATTRIBUTES, WORDS

HELP = "say what a filter would take; needs no server"
#: Options of filters that ``plan`` takes: those that say how large they are.
PLAN_OPTIONS = {
    ATTRIBUTES[option.name]: option.help
    for option in OPTIONS
    if option.name not in ("stagger", "run")
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    for name, text in PLAN_OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=text)


def run(session: CommandSession) -> ExitCode:
    """Print the plan.

    Raises:
        ConfigurationError: the filter is impossible.
    """
    wanted = FilterOptions(**session.settings.parameters())
    result = forecast(wanted.new_header(), wanted.config(DEFAULTS))
    result = replace(result, recrawl=in_words(result.recrawl, WORDS))
    session.report(to_json(result), render.plan(result))
    return ExitCode.FINE
