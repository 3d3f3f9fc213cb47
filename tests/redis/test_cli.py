"""``scrapy bloom``: what it prints, changes and returns, in a project and outside."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from example_site.build import Site
from example_site.serve import SiteServer
from scrapy import Request
from support.cli import KEY, SECRET, URLS, Call, Own, Shop, everything, fingerprints, give
from support.crawling import crawl, run
from support.matrix import mostly_slow
from support.servers import Server, free_port

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.forecast import forecast
from scrapy_bloom.bloom.model.schedule import parse_span
from scrapy_bloom.bloom.options import DEFAULTS, FilterOptions
from scrapy_bloom.cli import check as lookup_module
from scrapy_bloom.cli import render
from scrapy_bloom.cli.command import SUBCOMMANDS


class OwnFingerprinter:
    """Takes its crawler, as a fingerprinter may, and ignores the query."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> "OwnFingerprinter":
        assert crawler.settings["MARK"] == "yes"
        return cls()

    def fingerprint(self, request: Request) -> bytes:
        return request.url.partition("?")[0].encode()


class Broken:
    def fingerprint(self, request: Request) -> bytes:
        raise LookupError("a bug")


def fields_of(info: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what it has beside the dataclass's fields."""
    extra = {
        *("fill_ratio", "bits_per_url"),
        *("name", "exists", "address", "block", "urls_forgotten"),
    }
    kept = {k: v for k, v in info.items() if not k.endswith("_utc") and k not in extra}
    if "generations" in kept:
        kept["generations"] = tuple(fields_of(generation) for generation in kept["generations"])
    return kept


# -- the command itself --


@pytest.mark.parametrize("arguments", [["--help"], ["info", "--help"]])
def test_help_tells_the_exit_codes(call: Call, arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.code == 0
    assert "Exit codes: 0 fine; 1" in done.out
    assert "--json" in done.out if arguments[0] == "info" else "rotate" in done.out


@pytest.mark.parametrize(
    "width", mostly_slow(range(60, 141), lambda width: width in (60, 79, 80, 100, 140))
)
def test_help_has_no_headings_but_its_own(
    call: Call, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Scrapy makes a heading of each line that ends with a colon."""
    monkeypatch.setenv("COLUMNS", str(width))
    for name in (None, *SUBCOMMANDS):
        lines = call(*([] if name is None else [name]), "--help").out.splitlines()
        found = {
            above for above, line in pairwise(lines) if line and not line.strip("=-") and above
        }
        known = {"Usage", "Options", "Global Options", "Positional Arguments", "Subcommands"}
        assert found <= known


def test_without_a_subcommand_it_shows_its_help(call: Call) -> None:
    done = call()
    assert done.code == 2
    assert "{plan,info,check,migrate,pending,rotate,clear,delete,export,import}" in done.out


@pytest.mark.parametrize(
    "arguments", [["info", "--nonsense"], ["nonsense"], ["plan", "surplus"], ["info", "-s", "x"]]
)
def test_wrong_usage(call: Call, arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert "error: " in done.err


@pytest.mark.parametrize("place", ["before", "after", "both"])
def test_settings_may_stand_before_and_after_the_subcommand(
    call: Call, client: redis.Redis, server: Server, place: str
) -> None:
    BloomFilter(client, "k").open()
    url, key = ["-s", f"BLOOM_REDIS_URL={server.url}"], ["-s", "BLOOM_KEY=k"]
    arguments = {
        "before": [*url, *key, "info", "--json"],
        "after": ["info", *url, "--json", *key],
        "both": [*key, "info", "--json", *url],
    }
    done = call(*arguments[place])
    assert done.code == 0, done.err
    assert done.json["filters"][0]["key"] == "k"


def test_logs_are_quiet_unless_asked_for(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY).open()
    addons = {"ADDONS": {"scrapy_bloom.Addon": 500}, "LOG_STDOUT": True}
    assert shop("info", **addons).err == ""
    for arguments in (["info", "-L", "DEBUG"], ["-L", "DEBUG", "info"]):
        done = shop(*arguments, **addons)
        assert "Enabled addons" in done.err
        assert KEY in done.out


@pytest.mark.parametrize(
    "command", ["plan", "info", "check https://example.com", "rotate", "clear"]
)
def test_without_rich_the_same_is_printed_in_plain_columns(
    shop: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    BloomFilter(client, KEY, window="3 months").open()
    yes = ["--yes"] if command in ("rotate", "clear") else []
    rich = shop(*command.split(), *yes)
    monkeypatch.setattr(render, "rich", None)
    plain = shop(*command.split(), *yes)
    assert (plain.code, plain.err) == (rich.code, "")
    rich_words, plain_words = (
        [word for word in done.out.split() if not set(word) <= set("─-")] for done in (rich, plain)
    )
    assert sorted(plain_words) == sorted(rich_words)
    assert all(line == line.rstrip() for line in plain.out.splitlines())


def test_the_command_is_imported_without_rich() -> None:
    code = "import sys; sys.modules['rich'] = None; import scrapy_bloom.cli.command"
    done = run("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


# -- which filter --


def test_a_key_is_needed_outside_a_project(call: Call) -> None:
    done = call("info")
    assert done.code == 2
    assert "give its key with --key" in done.err


def test_several_spiders_are_listed(call: Call, client: redis.Redis, server: Server) -> None:
    project = {"spiders": (Shop, Own), "BLOOM_REDIS_URL": server.url}
    done = call("info", **project)
    assert (done.code, done.out) == (2, "")
    assert "choose one with --spider (there are: own, shop)" in done.err
    assert "did you mean shop?" in call("info", "--spider", "shopp", **project).err
    assert "there are: own, shop" in call("info", "--spider", "x", **project).err
    BloomFilter(client, "special").open()
    # The spider's custom_settings count.
    assert call("info", "--spider", "own", "--json", **project).code == 0
    assert call("info", "--key", "special", **project).code == 0
    assert call("info", **project, BLOOM_KEY="special").code == 0


def test_named_windows(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY).open()
    BloomFilter(client, f"{KEY}:news", window="1 day").extend(fingerprints(URLS[:3]))
    windows = {"BLOOM_WINDOWS": {"news": "1 day", "other": "2 days"}}
    filters = shop("info", "--json", **windows).json["filters"]
    assert [(f["name"], f["exists"], f.get("count")) for f in filters] == [
        ("lasting", True, 0),
        ("news", True, 3),
        ("other", False, None),
    ]
    (document,) = shop("info", "--window", "news", "--json", **windows).json["filters"]
    assert (document["key"], document["window"]) == (f"{KEY}:news", "1 day")
    assert shop("info", "--window", "other", **windows).code == 1
    done = shop("info", "--window", "typo", **windows)
    assert done.code == 2
    assert "there are lasting, news, other" in done.err
    # Which windows another filter has, the project does not know.
    assert shop("info", "--key", KEY, "--window", "news").code == 0


def test_scrapy_redis_settings_are_the_fallback(
    call: Call, client: redis.Redis, server: Server
) -> None:
    BloomFilter(client, KEY).open()
    assert call("info", spiders=(Shop,), REDIS_URL=server.url).code == 0
    assert call("info", "-s", f"REDIS_URL={server.url}", "--key", KEY).code == 0


# -- errors --


@pytest.mark.parametrize(
    "command", ["info", "check https://example.com", "rotate -y", "clear -y", "delete -y"]
)
def test_where_there_is_no_filter(shop: Call, client: redis.Redis, command: str) -> None:
    done = shop(*command.split())
    assert done.code == 1
    assert "there is no" in done.out + done.err
    assert len((done.out + done.err).splitlines()) == 1
    assert client.keys() == []


def test_a_header_without_blocks_is_no_filter(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY).open()
    client.delete(*client.keys("*ring"))
    done = shop("info", "--json")
    assert done.code == 1
    assert done.json["filters"] == [{"name": "lasting", "key": KEY, "exists": False}]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"BLOOM_CAPACTIY": 5}, "did you mean BLOOM_CAPACITY?"),
        ({"BLOOM_REDIS_URL": f"redis://:{SECRET}@[host"}, "is not an address"),
        ({"BLOOM_KEY": "{x}"}, "must be a non-empty string"),
        ({"REQUEST_FINGERPRINTER_CLASS": Broken}, "LookupError: a bug (-L DEBUG shows where)"),
    ],
)
def test_bad_settings(
    shop: Call, client: redis.Redis, settings: dict[str, Any], message: str
) -> None:
    BloomFilter(client, KEY).open()
    for extra in ([], ["--json"]):
        done = shop("check", "https://example.com", *extra, **settings)
        assert done.code == 2
        assert message in done.err
        assert len(done.err.splitlines()) == 1
        assert SECRET not in done.out + done.err


def test_no_server(call: Call) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:{free_port()}"
    for command in (["info", "--json"], ["check", URLS[0]], ["clear", "-y"], ["delete", "-y"]):
        done = call(*command, "--key", "k", "-s", f"BLOOM_REDIS_URL={url}")
        assert (done.code, done.out) == (2, "")
        assert "start a server there" in done.err
        assert len(done.err.splitlines()) == 1
        assert SECRET not in done.err


def test_a_wrong_password_is_not_shown(call: Call, any_binary: str) -> None:
    with Server(any_binary, "--requirepass", "right") as locked:
        url = locked.url.replace("//", f"//:{SECRET}@")
        done = call("info", "--key", "k", "-s", f"BLOOM_REDIS_URL={url}")
    assert (done.code, done.out) == (2, "")
    assert "refuses the user name or the password" in done.err
    assert SECRET not in done.err


def test_plan_needs_no_server(call: Call) -> None:
    assert call("plan", BLOOM_REDIS_URL=f"redis://127.0.0.1:{free_port()}").code == 0


def test_an_interruption_is_no_answer(shop: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BloomFilter, "look", interrupt)
    done = shop("info")
    assert (done.code, done.err) == (2, "scrapy bloom: interrupted\n")


# -- plan --


def wanted(**parameters: Any) -> dict[str, Any]:
    asked = FilterOptions(**parameters)
    return asdict(forecast(asked.new_header(DEFAULTS), asked.config(DEFAULTS)))


def test_plan_shows_the_defaults(call: Call) -> None:
    done = call("plan")
    assert done.code == 0
    assert "A filter for 1,000,000 URLs a generation at an error rate of 1e-05" in done.out
    facts = dict(re.findall(r"  (\S.*?)  +(\S.*?) *\n", done.out))
    assert facts["hash functions (k)"] == "18"
    assert facts["window"] == "never forgets"
    assert facts["bits per URL"] == "25.8 at capacity"
    rows = [line.split() for line in done.out.splitlines()[-4:-1]]
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
    assert document["recrawl"] == "between 5 weeks and 6 weeks later"
    assert (document["capacity"], document["error_rate"]) == (10_000, 1e-3)
    assert (document["blocks"], document["num_hashes"], document["generations"]) == (2, 7, 6)
    assert (document["ring"], document["growth"]) == ("write-all", 3)
    assert document["max_memory"] == 1_000_000
    assert shop("plan", "--recrawl-after", "never", "--json", **project).json["window"] is None


def test_plan_of_windows_in_runs_needs_no_run(call: Call) -> None:
    assert call("plan", "--recrawl-after", "3 runs", "--json").json["recrawl"] == "3 runs later"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--capacity", "0"], "BLOOM_CAPACITY is the number of URLs"),
        (["--recrawl-after", "5 months", "--rotate-every", "2 months"], "multiple of the period"),
        (["--max-memory", "10"], "BLOOM_MAX_MEMORY = 10 is less than"),
    ],
)
def test_plan_of_the_impossible(call: Call, options: list[str], message: str) -> None:
    done = call("plan", *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize(
    ("window", "period", "text"),
    [
        (None, None, "never"),
        ("5 months", "1 month", "between 4 months and 5 months later"),
        ("1 week", "1 week", "at most 1 week later, and at once if the filter rotates in between"),
        ("1 run", "1 run", "1 run later"),
        ("6 runs", "2 runs", "5 to 6 runs later"),
    ],
)
def test_when_a_page_is_crawled_again(
    call: Call, window: str | None, period: str | None, text: str
) -> None:
    options = ["--recrawl-after", window, "--rotate-every", period] if window and period else []
    assert call("plan", "--json", *options).json["recrawl"].startswith(text)


def test_missed_pages_are_bounded_by_the_error_rate() -> None:
    assert wanted(capacity=2000, error_rate=1e-2)["missed_at_most"] == pytest.approx(20)
    four = wanted(capacity=2000, error_rate=1e-2, window=parse_span("", "4 months"))
    assert four["missed_at_most"] == pytest.approx(80)


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_growth_is_what_a_real_filter_does(client: redis.Redis, ring: str) -> None:
    parameters = {"capacity": 500, "error_rate": 1e-2, "blocks": 1}
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
    assert (first["unrecorded"], first["forgets_early"]) == (0, False)
    assert 0.9e6 < second["unrecorded"] < 1e6
    assert third["memory"] == first["memory"]
    # Early rotation forgets what is older than the period, and nothing of the period itself.
    rotating = wanted(window=parse_span("", "2 months"), growth=0)["loads"]
    assert [load["forgets_early"] for load in rotating] == [False, True, True]
    assert [load["unrecorded"] > 0 for load in rotating] == [False, False, True]
    limited = wanted(window=parse_span("", "3 months"), max_memory=20_000_000)["loads"]
    assert [load["forgets_early"] for load in limited] == [False, True, True]
    assert limited[2]["memory"] == 20_000_000


def test_no_digit_is_lost_on_a_narrow_terminal(
    shop: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    BloomFilter(client, KEY, capacity=10**7, window="5 months").extend(fingerprints(URLS))
    monkeypatch.setenv("COLUMNS", "80")
    options = ["--ring", "write-all", "--max-memory", "30_000_000"]
    plan = shop("plan", "--recrawl-after", "6 weeks", "--rotate-every", "1 week", *options).out
    assert "  2,000,000 " in plan
    assert "28.6 MiB" in plan
    info = shop("info", "-v").out
    assert max(map(len, (plan + info).splitlines())) == 80
    assert "…" not in plan + info


# -- info --


def test_info_is_that_of_the_library_and_changes_nothing(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, window="3 months", max_memory=1 << 20)
    bloom.extend(fingerprints(URLS))
    expected = asdict(bloom.info())
    before = everything(client)
    # Settings that differ from the stored ones are for crawls to apply.
    settings = {"BLOOM_CAPACITY": 77, "BLOOM_RECRAWL_AFTER": "1 day", "BLOOM_BLOCKS": 5}
    done = shop("info", "--json", **settings)
    text = shop("info", "-v", **settings)
    assert everything(client) == before
    assert (done.code, done.err) == (0, "")
    (document,) = done.json["filters"]
    document["now"] = expected["now"]
    assert fields_of(document) == expected
    generation = document["generations"][0]
    assert generation["opened_utc"].endswith("Z")
    assert generation["fill_ratio"] == pytest.approx(20 / generation["capacity"])
    assert text.code == 0
    for part in (KEY, "3 months, rotated every 1 month", "20 (made for 1,000 a gen", "1.0 MiB"):
        assert part in text.out
    rows = [line.split()[0] for line in text.out.splitlines() if line.strip()]
    assert rows[-16:] == [str(block) for block in range(16)]


def test_info_measures(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=500, error_rate=0.5, growth=0)
    bloom.extend(f"{number}" for number in range(500))
    before = everything(client)
    (document,) = shop("info", "--json", "--measure", "2_000").json["filters"]
    measured = document["measured"]
    assert measured["probes"] == 2_000
    assert 0 < measured["low"] < measured["rate"] == measured["seen"] / 2_000 < measured["high"] < 1
    text = " ".join(shop("info", "--measure").out.split())
    assert "of 100,000 random fingerprints are seen: 0." in text
    assert "of all new URLs are hidden now" in text
    assert everything(client) == before
    assert "measured" not in shop("info", "--json").json["filters"][0]


@pytest.mark.parametrize("probes", ["0", "-1", "many", "1.5"])
def test_what_is_measured_is_a_number(shop: Call, client: redis.Redis, probes: str) -> None:
    BloomFilter(client, KEY).open()
    done = shop("info", f"--measure={probes}")
    assert (done.code, done.out) == (2, "")
    assert "--measure is fingerprints to test, a whole number from 1" in done.err


def test_without_a_filter_nothing_is_measured(shop: Call, client: redis.Redis) -> None:
    assert shop("info", "--measure").code == 1
    assert client.dbsize() == 0


def test_info_of_each_block(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, blocks=3)
    bloom.extend(fingerprints(URLS))
    (document,) = shop("info", "-v", "--json").json["filters"]
    for block in document["per_block"]:
        expected = asdict(bloom.info(block["block"]))
        block["now"] = expected["now"]
        assert fields_of(block) == expected
    assert [block["block"] for block in document["per_block"]] == [0, 1, 2]


def test_info_says_what_is_lost(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY, blocks=4).open()
    client.delete(f"{{{KEY}:2}}:ring")
    assert "1 (evicted or deleted)" in shop("info").out
    assert shop("info", "--json").json["filters"][0]["lost_blocks"] == 1


def test_info_where_runs_tell_the_time(shop: Call, client: redis.Redis) -> None:
    for run_ in ("a", "b", "c"):
        BloomFilter(client, KEY, window="3 runs", run=run_).open()
    rows = [line for line in shop("info").out.splitlines() if re.match(r" +20\d\d-", line)]
    assert [re.split("  +", row.strip())[1:3] for row in rows] == [
        ["with the next run", "3 runs from now"],
        ["closed", "2 runs from now"],
        ["closed", "with the next run"],
    ]


def test_of_a_counting_filter_memory_and_lost_discards_are_told(
    shop: Call, client: redis.Redis
) -> None:
    plan = shop("plan", "--capacity", "1000", "--counting", "true").out
    planned, bits = (
        shop("plan", "--capacity", "1000", "--counting", counting, "--json").json
        for counting in ("true", "false")
    )
    assert planned["opened_memory"] == pytest.approx(4 * bits["opened_memory"], rel=0.01)
    assert "memory" not in planned
    load = planned["loads"][0]
    assert load["error_rate"] < load["lost_by_discard"] < 20 * load["error_rate"]
    assert 0 < load["saturated"] < 1e-6
    BloomFilter(client, KEY, capacity=1000, counting=True).extend(fingerprints(URLS))
    for text in (plan, shop("info").out):
        assert "4-bit counters, 4 times the memory of bits" in text
        assert "one of an absent URL hits others at the error rate" in " ".join(text.split())
    (document,) = shop("info", "--json").json["filters"]
    assert document["counting"]
    assert document["lost_by_discard"] > document["estimated_error_rate"] > 0
    assert "counter" not in shop("plan").out
    assert "write-all" in shop("plan", "--counting", "1", "--ring", "write-all").err


def test_info_of_a_filter_that_never_forgets(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY, growth=0).open()
    done = shop("info")
    assert "never forgets" in done.out
    assert "grows         no" in done.out


# -- check --


def two_generations(client: redis.Redis) -> BloomFilter:
    fingerprinter = "scrapy.utils.request.RequestFingerprinter"
    first = BloomFilter(client, KEY, window="3 runs", run="a", fingerprinter=fingerprinter)
    first.extend(fingerprints(URLS[:2]))
    second = BloomFilter(client, KEY, window="3 runs", run="b")
    second.extend(fingerprints(URLS[2:4]))
    return second


def test_check_of_two_generations(shop: Call, client: redis.Redis) -> None:
    bloom = two_generations(client)
    before = everything(client)
    asked = [URLS[0], URLS[9], URLS[3]]
    done = shop("check", "--json", *asked)
    assert everything(client) == before
    assert (done.code, done.err) == (1, "")
    answers = done.json["answers"]
    assert [answer.pop("url") for answer in answers] == asked
    assert {answer.pop("name") for answer in answers} == {"lasting"}
    items = fingerprints(asked)
    assert [fields_of(answer) for answer in answers] == [asdict(bloom.find(i)) for i in items]
    assert (done.json["asked"], done.json["seen"]) == (3, 2)
    text = shop("check", *asked)
    assert [line.split()[0] for line in text.out.splitlines()[1:]] == ["seen", "new", "seen", "2"]
    assert "in a later run" in text.out
    assert shop("check", *URLS[:4]).code == 0


def test_check_says_when_urls_are_new_again(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, window="3 months")
    bloom.extend(fingerprints(URLS[:1]))
    (answer,) = shop("check", URLS[0], "--json").json["answers"]
    assert answer["until"] == bloom.info().generations[0].forgotten
    assert answer["until_utc"].endswith("-01T00:00:00Z")
    assert f"{answer['until_utc'][:10]} 00:00" in shop("check", URLS[0]).out


def test_check_of_bloom_keys(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY).add(b"bloom_key:sku-1")
    done = shop("check", "--bloom-key", "sku-1", "--bloom-key", "sku-2", "--json")
    assert done.code == 1
    assert [(a["bloom_key"], a["seen"]) for a in done.json["answers"]] == [
        ("sku-1", True),
        ("sku-2", False),
    ]


def test_check_of_items_of_the_library(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY, fingerprinter="somebody.Else").add_many(["caf\u00e9", URLS[0]])
    done = shop("check", "--item", "caf\u00e9", "--item", URLS[0], "--item", "tea", "--json")
    assert (done.code, done.err) == (1, "")
    assert [(a["item"], a["seen"]) for a in done.json["answers"]] == [
        ("caf\u00e9", True),
        (URLS[0], True),
        ("tea", False),
    ]
    assert shop("check", "--item", URLS[0]).code == 0


def test_check_uses_the_projects_fingerprinter(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY, fingerprinter="somebody.Else").add(b"https://example.com/a")
    settings = {"REQUEST_FINGERPRINTER_CLASS": OwnFingerprinter, "MARK": "yes"}
    done = shop("check", "https://example.com/a?session=1", **settings)
    assert done.code == 0
    assert "fingerprints of 'somebody.Else', and this crawl uses test_cli.Own" in done.err


def test_check_reads_any_number_of_urls_from_stdin(
    shop: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_module, "BATCH", 8)
    BloomFilter(client, KEY).extend(fingerprints(URLS))
    lines = "\n\n".join([*URLS, "https://example.com/new"])
    give(monkeypatch, lines.encode())
    done = shop("check", "-", "--json")
    assert (done.code, done.json["asked"], done.json["seen"]) == (1, 21, 20)
    assert [answer["url"] for answer in done.json["answers"]] == lines.split()
    give(monkeypatch, b"")
    done = shop("check", "-", "--json")
    assert (done.code, done.json["answers"]) == (0, [])


def test_check_answers_for_lines_that_are_no_urls(
    shop: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As migrate reads lists: a BOM is no part of the first URL, and other lines lose nothing."""
    BloomFilter(client, KEY).extend(fingerprints(URLS))
    first, second, third, *_ = (url.encode() for url in URLS)
    no_urls = [b"no url", b"\xff", first + b"\r" + second]
    lines = b"\n".join([b"\xef\xbb\xbf" + first, *no_urls, second + b"\r", b"", third])
    give(monkeypatch, lines)
    done = shop("check", "-", "--json")
    assert (done.code, done.json["asked"], done.json["seen"]) == (1, 6, 3)
    seen = [answer["url"] for answer in done.json["answers"] if answer["seen"]]
    assert seen == URLS[:3]
    problems = [answer["problem"] for answer in done.json["answers"] if "problem" in answer]
    assert ["is no URL" in problems[0], "UTF-8" in problems[1], "control" in problems[2]] == [
        *(True, True, True)
    ]
    give(monkeypatch, lines)
    done = shop("check", "-")
    assert done.code == 1
    assert done.out.count("no URL") == 3
    assert "\r" not in done.out
    assert "3 of 6 are seen" in done.out


def test_check_takes_rings_that_change_meanwhile(client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, window="3 months", blocks=2)
    items = fingerprints(URLS)
    bloom.extend(items[:10])
    other = BloomFilter(client, KEY)
    assert [info.seen for info in other.find_all(items)] == [True] * 10 + [False] * 10
    bloom.rotate()
    bloom.extend(items[8:12])
    found = other.find_all(items * 300)
    assert found == [bloom.find(item) for item in items] * 300
    bloom.clear()
    assert not any(info.seen for info in other.find_all(items))
    # One round trip, unless something has changed.
    before = other.round_trips
    other.find_all(items)
    assert other.round_trips == before + 1


def test_check_shows_how_far_it_is(
    shop: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_module, "BATCH", 8)
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, a terminal
    BloomFilter(client, KEY).extend(fingerprints(URLS))
    done = shop("check", *URLS)
    assert "URLs checked" in done.err
    assert [line.split()[-1] for line in done.out.splitlines()[1:-1]] == URLS
    assert done.out.endswith("20 of 20 are seen\n")
    assert shop("check", *URLS[:8]).err == ""


def test_check_follows_the_rules_of_windows(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY).extend(fingerprints(URLS[:1]))
    BloomFilter(client, f"{KEY}:news", window="1 day").extend(fingerprints(URLS[1:2]))
    settings = {
        "BLOOM_WINDOWS": {"news": "1 day"},
        "BLOOM_WINDOW_RULES": [["/1$", "news"], ["/2$", "run"]],
    }
    done = shop("check", *URLS[:3], "--json", **settings)
    assert [(a["name"], a["seen"], a["window"]) for a in done.json["answers"]] == [
        ("lasting", True, None),
        ("news", True, "1 day"),
        ("run", False, "run"),
    ]
    assert shop("check", URLS[0], "--window", "news", **settings).code == 1
    assert shop("check", URLS[1], "--key", KEY, **settings).code == 1


@pytest.mark.parametrize("arguments", [[], ["example.com"], ["https://example.com", "nonsense"]])
def test_check_of_what_is_no_url(shop: Call, client: redis.Redis, arguments: list[str]) -> None:
    BloomFilter(client, KEY).open()
    done = shop("check", *arguments)
    assert done.code == 2
    assert ("is no URL" if arguments else "give URLs to check") in done.err


# -- rotate and clear --


def test_rotate_says_what_it_forgets_and_forgets_that(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.extend(fingerprints(URLS))
    done = shop("rotate")
    assert (done.code, done.out) == (2, "")
    assert "forgets nothing (there are fewer" in done.err
    assert "add --yes" in done.err
    assert len(bloom.info().generations) == 1
    bloom.rotate()
    bloom.add("x")
    assert "Rotate 'shop:bloom'" in shop("rotate").err
    assert "forgets the 20 URLs of the generation opened 20" in shop("rotate").err
    done = shop("rotate", "--yes", "--json")
    assert (done.code, done.err, done.json["urls_forgotten"]) == (0, "", 20)
    assert done.json["count"] == len(bloom) == 1
    assert fields_of(done.json) == asdict(bloom.info()) | {"now": done.json["now"]}
    assert "1 URLs forgotten, 0 remembered" in shop("rotate", "-y").out


def test_rotate_under_write_all_forgets_what_only_the_oldest_has(
    shop: Call, client: redis.Redis
) -> None:
    bloom = BloomFilter(client, KEY, window="2 runs", run="a", ring="write-all")
    bloom.extend(fingerprints(URLS[:5]))
    bloom.rotate()
    bloom.extend(fingerprints(URLS[5:8]))
    assert shop("rotate", "-y", "--json").json["urls_forgotten"] == 5
    assert len(bloom) == 3


def test_rotate_needs_a_window(shop: Call, client: redis.Redis) -> None:
    BloomFilter(client, KEY).open()
    before = everything(client)
    done = shop("rotate", "--yes", BLOOM_RECRAWL_AFTER="3 months")
    assert done.code == 2
    assert "stored without a window" in done.err
    assert everything(client) == before


def test_clear(shop: Call, client: redis.Redis) -> None:
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.extend(fingerprints(URLS))
    done = shop("clear")
    assert (done.code, done.out, len(bloom)) == (2, "", 20)
    assert "forgets all its 20 URLs? There is no terminal to ask at" in done.err
    done = shop("clear", "--yes", "--json")
    assert (done.code, done.err, done.json["urls_forgotten"]) == (0, "", 20)
    assert done.json["count"] == len(bloom) == 0
    assert "0 URLs forgotten, 0 remembered" in shop("clear", "-y").out


@pytest.mark.parametrize(
    ("answer", "code"), [("y\n", 0), ("YES\n", 0), ("n\n", 1), ("\n", 1), ("", 1)]
)
def test_confirmation(
    shop: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.add("x")
    stdin = io.StringIO(answer)
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    done = shop("clear")
    assert done.code == code
    assert done.err.endswith("? [y/N] ")
    assert len(bloom) == code


# -- as users run it --


def outside(directory: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run ``scrapy bloom`` where there is no project."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SCRAPY_")}
    return subprocess.run(
        [sys.executable, "-m", "scrapy", "bloom", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **more,
    )


def test_outside_a_project(client: redis.Redis, server: Server, tmp_path: Path) -> None:
    BloomFilter(client, KEY, window="2 months").extend(fingerprints(URLS))
    where = ("--key", KEY, "-s", f"BLOOM_REDIS_URL={server.url}")
    done = outside(tmp_path, "info", "--json", *where)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["filters"][0]["count"] == 20
    done = outside(tmp_path, "check", "-", *where, input="\n".join([*URLS, "https://new.example"]))
    assert (done.returncode, done.stderr) == (1, "")
    assert "20 of 21 are seen" in done.stdout
    done = outside(tmp_path, "clear", *where, input="y\n")
    assert (done.returncode, done.stdout) == (2, "")
    for command in ("rotate", "clear"):
        assert outside(tmp_path, command, "--yes", *where).returncode == 0
    assert outside(tmp_path, "plan").returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_whoever_reads_may_have_had_enough(
    client: redis.Redis, server: Server, tmp_path: Path
) -> None:
    BloomFilter(client, KEY).open()
    scrapy = (
        f"{sys.executable} -m scrapy bloom check --key {KEY} --set BLOOM_REDIS_URL={server.url}"
    )
    (tmp_path / "urls").write_text("".join(f"{url}\n" for url in URLS * 500))
    done = subprocess.run(
        ["bash", "-c", f"{scrapy} - <urls | head -1; echo ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["141"]


def in_shell(command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    scrapy = f"{sys.executable} -m scrapy bloom"
    return subprocess.run(
        ["bash", "-c", command.replace("BLOOM ", f"{scrapy} ")],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_reader_that_is_gone_is_no_failure(tmp_path: Path, options: str) -> None:
    """``true`` reads nothing; the pipe is closed before anything is printed."""
    done = in_shell(f"(sleep 0; BLOOM plan {options}) | true; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.stdout, done.stderr) == ("141\n", "")


@pytest.mark.parametrize(
    ("command", "code", "err"),
    [
        ("BLOOM plan >&-", 0, ""),
        ("BLOOM plan <&-", 0, ""),
        ("BLOOM plan 2>&-", 0, ""),
        ("BLOOM rotate WHERE <&-", 2, "There is no terminal to ask at"),
        ("BLOOM check - WHERE <&-", 0, ""),
        ("BLOOM check http://example.com WHERE >&-", 1, ""),
        ("BLOOM export - WHERE >&-", 2, "the standard output is closed: name a file"),
        ("BLOOM import - WHERE <&-", 2, ""),
    ],
)
def test_streams_may_be_closed(
    redis_url: str, tmp_path: Path, command: str, code: int, err: str
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        BloomFilter(client, KEY, window="3 months", blocks=1).open()
    where = f"--key {KEY} -s BLOOM_REDIS_URL={redis_url}"
    done = in_shell(command.replace("WHERE", where), tmp_path)
    assert done.returncode == code, done.stderr
    assert err in done.stderr
    assert "Error" not in done.stderr


def test_a_terminal_that_knows_ascii_only_gets_escapes(redis_url: str, tmp_path: Path) -> None:
    with redis.Redis.from_url(redis_url) as client:
        BloomFilter(client, "gr\u00fcn").open()
    where = f"--key gr\u00fcn -s BLOOM_REDIS_URL={redis_url}"
    for command in ("info", "check http://\u4f8b/", "info --key n\u00f6"):
        done = in_shell(f"BLOOM {command} {where}", tmp_path, PYTHONIOENCODING="ascii")
        assert "Error" not in done.stderr
        assert "\\x" in done.stdout or "\\u" in done.stdout


def test_in_the_example_project(
    redis_url: str, site: Site, web: SiteServer, tmp_path: Path
) -> None:
    crawl("links", web, tmp_path, BLOOM_REDIS_URL=redis_url)
    bloom = ["-m", "scrapy", "bloom"]
    where = ["--spider", "links", "-s", f"BLOOM_REDIS_URL={redis_url}"]
    done = run(*bloom, "info", "--json", *where)
    assert (done.returncode, done.stderr) == (0, "")
    with redis.Redis.from_url(redis_url) as client:
        expected = BloomFilter(client, "links:bloom").info()
    (document,) = json.loads(done.stdout)["filters"]
    assert document["count"] == expected.count > 50
    # What the crawl has marked is what the command finds.
    url = web.url + min(site.truth().stories)
    done = run(*bloom, "check", url, f"{web.url}/never", *where, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert [answer["seen"] for answer in json.loads(done.stdout)["answers"]] == [True, False]
    done = run(*bloom, "info", "-s", f"BLOOM_REDIS_URL={redis_url}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "links, sitemap" in done.stderr
