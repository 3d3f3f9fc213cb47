"""``scrapy bloom settings``: what is stored beside what the project asks for, and ``--apply``."""

from typing import Any

import pytest
from redis import Redis
from support.cli import KEY, URLS, Call, everything, fingerprints

from scrapy_bloom import BloomFilter, FilterMismatchError
from scrapy_bloom.bloom.options import EXTEND, KEEP


@pytest.fixture
def stored(client: Redis) -> BloomFilter:
    bloom = BloomFilter(client, KEY, capacity=1000, window="6 months")
    bloom.extend(fingerprints(URLS))
    return bloom


def test_what_is_stored_is_shown_beside_the_projects(
    shop: Call, client: Redis, stored: BloomFilter
) -> None:
    before = everything(client)
    settings = {"BLOOM_RECRAWL_AFTER": "2 days", "BLOOM_MAX_MEMORY": "1 GiB"}
    (document,) = shop("settings", "--json", **settings).json["filters"]
    assert document["settings"]["BLOOM_RECRAWL_AFTER"] == {
        "stored": "6 months",
        "project": "2 days",
    }
    assert document["settings"]["BLOOM_CAPACITY"] == {"stored": 1000, "project": 1_000_000}
    assert document["settings"]["BLOOM_MAX_MEMORY"] == {"stored": None, "project": 1 << 30}
    text = " ".join(shop("settings", **settings).out.split())
    for part in (
        "BLOOM_RECRAWL_AFTER 6 months 2 days",
        "BLOOM_CAPACITY 1,000 1,000,000",
        "BLOOM_MAX_MEMORY none 1,073,741,824",
        "BLOOM_ERROR_RATE 1e-05 1e-05",
        "a crawl refuses to open the filter",
        'set BLOOM_RECRAWL_AFTER = "6 months" and BLOOM_ROTATE_EVERY = "1 month"',
        "scrapy bloom settings --apply",
    ):
        assert part in text
    assert everything(client) == before


def test_a_shorter_window_is_applied_if_the_user_agrees(
    shop: Call, client: Redis, stored: BloomFilter
) -> None:
    settings = {"BLOOM_RECRAWL_AFTER": "2 days", "BLOOM_CAPACITY": 1000}
    before = everything(client)
    done = shop("settings", "--apply", **settings)
    assert done.code == 2
    assert "BLOOM_RECRAWL_AFTER = 2 days" in done.err
    assert "which forgets 0 of its URLs at once" in done.err
    assert everything(client) == before
    done = shop("settings", "--apply", "--yes", **settings)
    assert done.code == 0
    assert "refuses" not in done.out
    info = stored.info()
    assert (info.window, info.capacity) == ("2 days", 1000)
    again = everything(client)
    assert shop("settings", "--apply", **settings).code == 0  # there is nothing to ask
    assert everything(client) == again


def test_what_is_applied_is_no_run(shop: Call, client: Redis) -> None:
    for run in "ab":
        BloomFilter(client, KEY, window="3 runs", run=run).add(run)
    settings = {"BLOOM_RECRAWL_AFTER": "2 runs", "BLOOM_RUN": "c"}
    assert shop("settings", "--apply", "--yes", **settings).code == 0
    info = BloomFilter(client, KEY).info()
    assert (info.window, info.count) == ("2 runs", 2)
    assert [generation.run for generation in info.generations] == [1, 0]


def test_fixed_settings_are_not_applied(shop: Call, client: Redis, stored: BloomFilter) -> None:
    before = everything(client)
    done = shop("settings", "--apply", "--yes", BLOOM_BLOCKS=5)
    assert done.code == 2
    assert "remove BLOOM_BLOCKS to use the filter as it is" in done.err
    assert everything(client) == before


# -- the rule, in the library --


@pytest.mark.parametrize(
    "options",
    [
        {"window": "5 months"},
        {"window": "6 months", "period": "2 months"},
        {"window": "6 runs", "run": "1"},
    ],
)
def test_to_forget_earlier_is_refused_and_the_rest_is_applied(
    client: Redis, stored: BloomFilter, options: dict[str, Any]
) -> None:
    """Which windows forget earlier: unit/test_schedule.py."""
    before = everything(client)
    message = r'is stored with `window` = "6 months" and .* earlier: open it'
    with pytest.raises(FilterMismatchError, match=message):
        BloomFilter(client, KEY, on_difference=EXTEND, **options).open()
    assert everything(client) == before
    BloomFilter(client, KEY, on_difference=EXTEND, window="7 months", capacity=5).open()
    assert (stored.info().window, stored.info().capacity) == ("7 months", 5)
    BloomFilter(client, KEY, on_difference=KEEP, window="1 day", capacity=6).open()
    assert (stored.info().window, stored.info().capacity) == ("7 months", 5)
