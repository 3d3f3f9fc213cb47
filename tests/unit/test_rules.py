"""Re-crawl rules: parsing, matching, and the names of windows."""

import json
import re

import pytest
from scrapy.settings import Settings

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.protocol.rings import DEFAULT
from scrapy_bloom.rules import RUN, Rules
from scrapy_bloom.settings import BloomSettings


def rules(*pairs: object, main: object = None) -> Rules:
    given = Settings({"BLOOM_RECRAWL_RULES": [*pairs], "BLOOM_RECRAWL_AFTER": main})
    return BloomSettings.read(given, "shop").rules()


def error_of(given: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        BloomSettings.read(Settings({"BLOOM_RECRAWL_RULES": given}), "shop")
    return str(caught.value)


# -- parsing --


def test_rules_on_the_command_line_are_json() -> None:
    pairs = [[r"/a/\d", "1 day"], ["/b/", "run"]]
    found = BloomSettings.read(Settings({"BLOOM_RECRAWL_RULES": json.dumps(pairs)}), "shop")
    assert found.rules() == rules(*pairs)


@pytest.mark.parametrize("text", ["[", "7", '"a"', "{}", "[" * 9_000, "/list/ 1 day", "[('a',1)]"])
def test_other_text_is_an_error_that_shows_json(text: str) -> None:
    assert error_of(text).endswith('On the command line, write JSON: [["/list/", "1 day"]]')


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (("(", "1 day"), "The regular expression '(' has an error: missing )"),
        (("/a", "2"), 'Do you mean "2 days" or "2 months"?'),
        (("/a", "soon"), 'A window is a length of time, "run", "default" or "never"'),
        (("/a", None), "not as None"),
        (("/a", {"recrawl_after": "1 day"}), "A window is a length of time"),
        (("/a",), 'for example [(r"/list/", "1 day")]'),
        (("/a", "1 day", 5), "Use pairs of a regular expression and a window"),
        (({"host": "a"}, "1 day"), "Use pairs"),
        ((rb"/a", "1 day"), "Use pairs"),
        ("ab", "Use pairs"),
        ((7, "run"), "Use pairs"),
    ],
)
def test_a_wrong_rule_is_an_error_with_its_number_and_the_fix(rule: object, reason: str) -> None:
    message = error_of([("/b", "run"), rule])
    assert message.startswith("BLOOM_RECRAWL_RULES = [")
    assert "can't be used. Rule 2 is " in message
    assert reason in message


# -- matching --


def test_the_first_rule_that_is_found_in_a_url_counts() -> None:
    found = rules((r"/2$", "run"), (re.compile("X", re.IGNORECASE), "1 day"), ("/", "never"))
    assert found.window("https://a.example/2") == RUN
    assert found.window("https://x.example/1") == "1-day"
    assert found.window("https://b.invalid/2/") == DEFAULT  # as it is never forgotten by default
    assert rules(("/a", "run")).window("https://b.example/") is None


# -- windows and their names --


def test_equal_windows_have_one_name() -> None:
    found = rules(
        *(("/a", "1 day"), ("/b", "24 hours"), ("/c", "1 year"), ("/d", "12 months")),
        *(("/e", "run"), ("/f", "Default")),
    )
    names = [name for _, name in found.patterns]
    assert names == ["1-day", "1-day", "1-year", "1-year", RUN, DEFAULT]
    assert [*found.schedules] == [DEFAULT, "1-day", "1-year"]
    assert found.schedules["1-year"] == Schedule.of("12 months")


def test_the_window_of_other_urls_has_the_name_default() -> None:
    found = rules(("/a", "6 months"), ("/b", "never"), main="6 months")
    assert [name for _, name in found.patterns] == [DEFAULT, "never"]
    assert found.schedules == {DEFAULT: Schedule.of("6 months"), "never": Schedule()}
    assert rules(("/a", "never")).schedules == {DEFAULT: Schedule()}


def test_a_request_may_ask_for_any_window_of_the_settings() -> None:
    found = rules(("/a", "1 day"), main="6 months")
    asked = {" RUN ": RUN, "default": DEFAULT, "6 months": DEFAULT, "24 hours": "1-day"}
    assert {value: found.find(value) for value in asked} == asked


@pytest.mark.parametrize("value", ["3 days", "never", "soon", "2", None, 7, True, ["1 day"]])
def test_another_window_is_an_error(value: object) -> None:
    with pytest.raises(ConfigurationError, match="window"):
        rules(("/a", "1 day"), main="6 months").find(value)
