"""Re-crawl rules: parsing, matching, and the names of filters."""

import json
from typing import Any

import pytest

from scrapy_bloom import ConfigurationError
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, RUNS, SECONDS, Span
from scrapy_bloom.recrawl_rules import (
    DEFAULT,
    RUN,
    RecrawlRule,
    RecrawlWindow,
    RecrawlWindows,
    parse_after,
    parse_rules,
)

NAME = "BLOOM_RECRAWL_RULES"
DAY, WEEK = 86_400, 7 * 86_400


def after(value: object) -> Any:
    """Return the window of a rule."""
    return parse_after(NAME, value)


def rules(*pairs: tuple[object, object]) -> tuple[RecrawlRule, ...]:
    return parse_rules(NAME, pairs)


def windows(
    *pairs: tuple[object, object], main: object = "never", start: object = RUN
) -> RecrawlWindows:
    return RecrawlWindows.of(after(main), after(start), rules(*pairs))


# -- parsing --


def test_windows_of_rules() -> None:
    assert (after(" Run "), after("default")) == (RUN, DEFAULT)
    assert after(DAY) == RecrawlWindow(Span(DAY, SECONDS))
    assert after("1 run") == RecrawlWindow(Span(1, RUNS))
    given = {"recrawl_after": "6 months", "rotate_every": "3 months", "capacity": "50k"}
    assert after(given) == RecrawlWindow(Span(12, HALF_MONTHS), Span(6, HALF_MONTHS), 50_000)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("soon", 'or "2 runs", or "never", "run" or "default"; got \'soon\': it should be'),
        ({"capacity": 5}, 'as a dict has "recrawl_after"'),
        ({"recrawl_after": "1 day", "days": 5}, "as a dict has .*got .*days"),
        ({"recrawl_after": "1 day", "capacity": 0}, r"\['capacity'\] is the number of URLs"),
        ({"recrawl_after": "2 days", "rotate_every": "3 days"}, 'set rotate_every to "2 days"'),
        ({"recrawl_after": "run", "capacity": 5}, "leave them out"),
        ({"recrawl_after": "never", "rotate_every": "1 day"}, 'leave "rotate_every" out'),
    ],
)
def test_other_windows_are_refused(value: object, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error) as caught:
        after(value)
    assert str(caught.value).startswith(NAME)


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        ("(", r"is a regular expression, .* got '\(' \(missing \)"),
        ({}, 'no dict with "url", "host" or "depth"; got {}'),
        (7, "got 7"),
        ({"url": "/a", "hosts": "a"}, 'no dict with "url", "host" or "depth"'),
        *(
            ({"host": host}, '"host" is the name of a host')
            for host in ("", 7, "https://a.b", "a.b:80", "a b", "\ud800", "a..b")
        ),
        *(({"depth": depth}, '"depth" is the number of links') for depth in (-1, "1", True, 10**9)),
    ],
)
def test_other_conditions_are_refused(condition: object, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error) as caught:
        rules(("/a", "run"), (condition, "1 day"))
    assert str(caught.value).startswith(f"{NAME}[1]")


def test_rules_on_the_command_line_are_json() -> None:
    pairs = [["/a", "1 day"], [{"host": "a.b", "depth": 1}, {"recrawl_after": "2 runs"}]]
    assert parse_rules(NAME, json.dumps(pairs)) == parse_rules(NAME, pairs)
    for text in ("[", "7", '"a"', "{}", "[" * 9_000):
        with pytest.raises(ConfigurationError, match="is a list of rules"):
            parse_rules(NAME, text)


# -- matching --


@pytest.mark.parametrize(
    ("condition", "url", "depth", "holds"),
    [
        (r"/page/\d+$", "https://x.example/page/12", 3, True),
        ({"host": "X.Example."}, "https://www.X.example:8000/", 0, True),
        ({"host": "x.example"}, "https://user:x.example@other.example/", 0, False),
        ({"host": "x.example"}, "https://ax.example/", 0, False),
        ({"host": "bücher.example"}, "https://xn--bcher-kva.example/", 0, True),
        ({"host": "[::1]"}, "http://[::1]:80/", 0, True),
        ({"host": "x.example"}, "http://[x.example/", 0, False),
        ({"depth": 0}, "https://x.example/", None, False),
        ({"url": "/a", "host": "x.example", "depth": 1}, "https://x.example/a", 1, True),
    ],
)
def test_a_condition_holds_if_all_that_is_given_does(
    condition: object, url: str, depth: int | None, holds: bool
) -> None:
    ((rule,)) = (rules((condition, "run")),)
    assert rule[0].condition.holds(url, depth) is holds


def test_the_first_rule_that_matches_counts() -> None:
    found = windows(
        ({"host": "b"}, "1 day"), ("/2", "run"), ({"depth": 1}, "7 days"), ("/1", "1 month")
    )
    assert found.name("https://a.b/2", 1) == "1-day"
    assert found.name("https://a/2", 1) == RUN
    assert found.name("https://a/1", 1) == "1-week"
    assert found.name("https://a/1", 0) == "1-month"
    assert found.name("https://a/", 0) == DEFAULT
    assert {*found.others} == {"1-day", "1-week", "1-month"}


# -- filters and their names --


def test_the_name_of_a_filter_is_made_of_its_window() -> None:
    values = ("24 hours", "12 months", "24 runs", "never")
    assert [after(value).name for value in values] == ["1-day", "1-year", "24-runs", "never"]
    usual = {"recrawl_after": "1 day", "rotate_every": "12 hours", "capacity": 5}
    assert after(usual).name == "1-day"
    own = {"recrawl_after": "2 months", "rotate_every": "0.5 months"}
    assert after(own).name == "2-months-by-0.5-months"


def test_equal_windows_share_a_filter_and_the_largest_capacity_counts() -> None:
    found = windows(
        ("/a", "1 day"),
        ("/b", {"recrawl_after": "24 hours", "capacity": 50}),
        ("/c", {"recrawl_after": "1 day", "capacity": 70}),
        ("/d", {"recrawl_after": "1 day", "capacity": 60}),
        ("/e", "2 days"),
        start="2 days",
    )
    capacities = {name: window.capacity for name, window in found.others.items()}
    assert capacities == {"1-day": 70, "2-days": None}
    assert found.start == "2-days"


def test_the_main_window_has_the_main_filter() -> None:
    found = windows(
        ("/a", "6 months"),
        ("/b", {"recrawl_after": "6 months", "rotate_every": "1 month"}),
        ("/c", {"recrawl_after": "6 months", "rotate_every": "3 months"}),
        ("/d", "default"),
        ("/e", "never"),
        main="6 months",
        start="default",
    )
    names = [name for _, name in found.rules]
    assert names == [DEFAULT, DEFAULT, "6-months-by-3-months", DEFAULT, "never"]
    assert found.start == DEFAULT
    assert windows(("/a", "never")).others == {}


def test_a_request_names_a_window_of_the_settings() -> None:
    found = windows(
        ("/a", "1 day"),
        ("/b", {"recrawl_after": "9 months", "rotate_every": "3 months"}),
        main="6 months",
        start="2 weeks",
    )
    names = {
        " RUN ": RUN,
        "default": DEFAULT,
        "6 months": DEFAULT,
        DAY: "1-day",
        "9 months": "9-months-by-3-months",
        "2 weeks": "2-weeks",
    }
    assert {value: found.find(value) for value in names} == names
    assert found.spans == ["run", "default", "6 months", "2 weeks", "1 day", "9 months"]
    for other in ("3 days", "never", "soon", None, {"recrawl_after": "1 day"}, True):
        with pytest.raises(ConfigurationError):
            found.find(other)
