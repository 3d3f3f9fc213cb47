"""``scrapy bloom plan``: what it forecasts, and what a real filter then takes."""

import json
import re
from dataclasses import asdict
from typing import Any

import pytest
import redis
from support.cli import Call

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.forecast import forecast
from scrapy_bloom.bloom.model.schedule import parse_span
from scrapy_bloom.bloom.options import DEFAULTS, FilterOptions


def wanted(**parameters: Any) -> dict[str, Any]:
    asked = FilterOptions(**parameters)
    return asdict(forecast(asked.new_header(), asked.config(DEFAULTS)))


def test_plan_shows_the_defaults(call: Call) -> None:
    done = call("plan")
    assert done.code == 0
    assert "A filter for 1,000,000 URLs a generation at an error rate of 1e-05" in done.out
    facts = dict(re.findall(r"  (\S.*?)  +(\S.*?) *\n", done.out))
    assert facts["hash functions (k)"] == "18"
    assert facts["window"] == "never forgets"
    assert facts["bits per URL"] == "25.8 at capacity"
    rows = [line.split() for line in done.out.splitlines()[-3:]]
    assert [row[0] for row in rows] == ["1,000,000", "2,000,000", "3,000,000"]


def test_plan_takes_the_projects_settings_and_options_override_them(shop: Call) -> None:
    project = {"BLOOM_CAPACITY": 5000, "BLOOM_RECRAWL_AFTER": "5 months", "BLOOM_BLOCKS": "4"}
    document = shop("plan", "--json", **project).json
    expected = wanted(capacity=5000, window=parse_span("", "5 months"), blocks=4)
    assert document == json.loads(json.dumps(expected))
    document = shop(
        *("plan", "--json", "--capacity", "1e4", "--recrawl-after", "6 weeks"),
        *("--rotate-every", "1 week", "--error-rate", "1e-3", "--blocks", "2", "--seeds", "7"),
        *("--ring", "write-all", "--growth", "3", "--max-memory", "1_000_000"),
        **project,
    ).json
    assert document["recrawl"] == "5 to 6 weeks later"
    assert (document["capacity"], document["error_rate"]) == (10_000, 1e-3)
    assert (document["blocks"], document["num_hashes"], document["generations"]) == (2, 7, 6)
    assert (document["ring"], document["growth"]) == ("write-all", 3)
    assert document["max_memory"] == 1_000_000
    assert shop("plan", "--recrawl-after", "never", "--json", **project).json["window"] is None


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_growth_is_what_a_real_filter_does(client: redis.Redis, ring: str) -> None:
    parameters: dict[str, Any] = {"capacity": 500, "error_rate": 1e-2, "blocks": 1}
    load = wanted(**parameters, window=parse_span("", "3 runs"), ring=ring)["loads"][2]
    items = iter(range(100_000))
    for run_ in range(3):
        bloom = BloomFilter(client, "k", **parameters, window="3 runs", ring=ring, run=str(run_))
        share = 1500 // (3 if ring == "write-all" else 1)
        while len(bloom) and share > 0:
            share -= bloom.extend(f"{next(items)}" for _ in range(share))
        share -= bloom.extend(f"{next(items)}" for _ in range(share))
    info = bloom.info()
    assert load["memory"] >= info.memory >= 0.5 * load["memory"]
    assert info.estimated_error_rate == pytest.approx(load["error_rate"], rel=0.2)
    bits = 8 * load["memory"] / (1500 * (1 if ring == "write-all" else 3))
    assert load["bits_per_url"] == pytest.approx(bits)


def test_growth_ends_at_the_limits() -> None:
    first, second, third = wanted(max_memory=5_000_000)["loads"]
    assert [load["has_room"] for load in (first, second, third)] == [True, False, False]
    assert third["memory"] == first["memory"]
    rotating = wanted(window=parse_span("", "2 months"), growth=0)["loads"]
    assert [load["has_room"] for load in rotating] == [True, False, False]
    limited = wanted(window=parse_span("", "3 months"), max_memory=20_000_000)["loads"]
    assert [load["has_room"] for load in limited] == [True, False, False]
    assert limited[2]["memory"] == 20_000_000


def test_a_plan_by_urls_in_all_and_new_ones_a_month(call: Call) -> None:
    options = ("--urls", "10M", "--new-a-month", "500k", "--recrawl-after", "6 months")
    document = call("plan", "--json", *options, BLOOM_CAPACITY=7).json
    site = document["site"]
    assert site == {"urls": 10_000_000, "new_a_month": 500_000, "in_all": 13_000_000}
    assert document["capacity"] == 2_200_000
    assert document["capacity_in_all"] == 13_200_000
    text = call("plan", *options).out
    assert "URLs in all  13,000,000 in 6 months" in text
    assert "BLOOM_CAPACITY = 2_200_000 (URLs a generation)" in text


@pytest.mark.parametrize(
    ("options", "in_all", "capacity"),
    [
        ("--urls 1000", 1000, 1000),
        ("--urls 1000 --new-a-month 100", 2200, 2200),
        ("--urls 1234 --recrawl-after never", 1234, 1300),
        ("--urls 6000 --recrawl-after 3runs", 6000, 2000),
        ("--urls 1000 --new-a-month 100 --recrawl-after 3months --growth 0", 1300, 1100),
        (
            "--urls 1000 --new-a-month 100 --recrawl-after 3months --ring write-all",
            1300,
            1300,
        ),
        ("--urls 99 --new-a-month 10000 --recrawl-after 36h", 592, 300),
        ("--urls 1 --recrawl-after 5years", 1, 1),
    ],
)
def test_capacities_for_sites(call: Call, options: str, in_all: int, capacity: int) -> None:
    document = call("plan", "--json", *options.split()).json
    assert (document["site"]["in_all"], document["capacity"]) == (in_all, capacity)


def test_new_urls_a_month_need_a_window_of_time(call: Call) -> None:
    options = ("--urls", "3000", "--recrawl-after", "3 runs", "--new-a-month=9")
    assert "--new-a-month needs a window of time" in call("plan", *options).err
