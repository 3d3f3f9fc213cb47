"""``scrapy bloom doctor``: what is wrong with a project and its server. Changes nothing."""

import argparse
from collections.abc import Collection, Iterator, Sequence

from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.cli import render
from scrapy_bloom.cli.doctor_checks import Check, check_settings
from scrapy_bloom.cli.doctor_project import check_project
from scrapy_bloom.cli.doctor_server import ServerDoctor
from scrapy_bloom.cli.session import CommandSession, ExitCode, name_of
from scrapy_bloom.settings import BloomSettings, own_names, parse_setting

HELP = "say what is wrong with a project and its server; changes nothing"
#: Settings without which it is not known which server, or which filter, is meant.
OF_SERVER = {"BLOOM_REDIS_URL", "BLOOM_REDIS_PARAMS", "BLOOM_KEY"}
#: What stands before a check, by its state.
MARKS = {"fine": "ok", "problem": "PROBLEM", "unknown": "?"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add no options but those of all subcommands."""


def run(session: CommandSession) -> ExitCode:
    """Print what was checked, and what is wrong.

    Raises:
        ConfigurationError: the options name no spider of the project.
    """
    doctor, found = ServerDoctor(), dict[Check, list[str]]()
    for crawler in _crawlers(session):
        for check in _examine(doctor, crawler, is_in_project=bool(session.spiders)):
            names = found.setdefault(check, [])
            if name_of(crawler) not in names:
                names.append(name_of(crawler))
    problems = sum(check.finding is not None for check in found)
    document = {
        "problems": problems,
        "checks": [check.document() | {"spiders": names} for check, names in found.items()],
    }
    lines = [_line(check, _who(names, session)) for check, names in found.items()]
    summary = f"{problems} problems found" if problems != 1 else "1 problem found"
    session.report(document, "\n".join([*lines, "", summary if problems else "No problem found"]))
    return ExitCode.of(not problems)


def _crawlers(session: CommandSession) -> list[Crawler]:
    """Return crawlers of the chosen spider, or all; outside a project, of none in particular."""
    if session.opts.spider is not None:
        return [session.crawler]
    return [*map(session.crawler_of, session.all_spiders)]


def _examine(doctor: ServerDoctor, crawler: Crawler, *, is_in_project: bool) -> Iterator[Check]:
    """Yield all checks of a spider's settings and of its server."""
    settings, wrong, errors = read_settings(crawler.settings, name_of(crawler))
    yield from check_settings(errors)
    yield from check_project(crawler, settings, is_in_project=is_in_project)
    if wrong & OF_SERVER:
        yield Check("server", unknown="not checked: settings that name it are wrong")
    else:
        yield from doctor.check(crawler, settings)


def read_settings(
    scrapy_settings: BaseSettings, spider: str
) -> tuple[BloomSettings, set[str], list[ConfigurationError]]:
    """Read our settings without those that are wrong; return also their names, and the errors."""
    names = own_names(scrapy_settings)
    found = {name: _error_of(name, scrapy_settings[name]) for name in names}
    errors = {name: error for name, error in found.items() if error is not None}
    good = _only(scrapy_settings, found.keys() - errors.keys())
    try:
        return BloomSettings.from_scrapy(good, spider), {*errors}, [*errors.values()]
    except ConfigurationError as error:
        # They contradict each other, or it is the key: the others that name the server are good.
        wrong = {*errors, *(["BLOOM_KEY"] if "BLOOM_KEY" in str(error) else [])}
        good = _only(scrapy_settings, OF_SERVER - wrong)
        return BloomSettings.from_scrapy(good, spider), wrong, [*errors.values(), error]


def _error_of(name: str, value: object) -> ConfigurationError | None:
    try:
        parse_setting(name, value)
    except ConfigurationError as error:
        return error
    return None


def _only(scrapy_settings: BaseSettings, names: Collection[str]) -> BaseSettings:
    """Return settings of which ours are only those with some names."""
    copy = scrapy_settings.copy()
    for name in own_names(copy):
        if name not in names:
            del copy[name]
    return copy


def _who(names: Sequence[str], session: CommandSession) -> str:
    """Return the spiders of a check, if it is not one of all spiders."""
    if len(names) == len(_crawlers_names(session)):
        return ""
    return f" (spider {', '.join(names)})"


def _crawlers_names(session: CommandSession) -> Sequence[str]:
    return [session.opts.spider] if session.opts.spider else session.spiders or ["spider"]


def _line(check: Check, who: str) -> str:
    head = f"{MARKS[check.state]:8}{check.name}{who}: "
    if check.finding is None:
        return render.wrapped(head + (check.fine or check.unknown))
    return render.finding(check.finding, head)
