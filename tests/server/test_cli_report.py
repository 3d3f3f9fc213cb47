"""``scrapy bloom plan`` and ``report``: what a filter will take, and a page of what it holds."""

import html
import re
from pathlib import Path

import pytest
from redis import Redis
from support.cli import KEY, SECRET, URLS, Call, claim, fail, fingerprints, unchanged

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.schedule import Schedule

# -- plan --


def test_a_plan_is_what_the_filter_takes(shop: Call, client: Redis) -> None:
    """Also of a generation that has grown: memory, and the error rate."""
    options = {"BLOOM_CAPACITY": 2_000, "BLOOM_ERROR_RATE": 1e-3}
    plan = shop("plan", "--json", "--window", "never", **options).json
    bloom = BloomFilter(client, KEY, capacity=2_000, error_rate=1e-3)
    for row in plan["rows"][:-1]:  # with the last, some blocks grow and some don't
        urls = row["urls"]
        bloom.clear()
        bloom.extend(str(number) for number in range(urls))
        window = bloom.info().windows["default"]
        # URLs don't spread evenly, so that a block may grow earlier.
        assert row["memory"] == pytest.approx(window.memory, rel=0.2), urls
        assert row["bits_per_url"] == row["memory"] * 8 / urls
        assert row["error_rate"] <= 1e-3
    assert [row["urls"] for row in plan["rows"]] == [1_000, 2_000, 4_000, 6_000, 10_000, 20_000]
    assert plan["rows"][0]["error_rate"] < plan["rows"][1]["error_rate"]
    assert (plan["hash_functions"], plan["shards"]) == (bloom.hashes, 4)


def test_arguments_of_a_plan_replace_the_settings(shop: Call) -> None:
    """It needs no server, and says what Redis needs in all."""
    project = {"BLOOM_RECRAWL_AFTER": "2 weeks", "BLOOM_ROTATE_EVERY": "1 day"}
    project["BLOOM_REDIS_URL"] = "redis://127.0.0.1:1"
    words = ["--urls", "10000000", "--window", "6 months", "--error-rate", "1e-4"]
    done = shop("plan", *words, "--json", **project).json
    assert (done["capacity"], done["window"], done["generations"]) == (10_000_000, "6 months", 6)
    assert done["bitmaps"] == 6 * done["rows"][1]["memory"]
    assert done["rows"][1]["error_rate"] == pytest.approx(1e-4 / 2, rel=0.3), "of all generations"
    assert done["redis"] == round(1.25 * (done["bitmaps"] + done["pending_requests"]))
    assert shop("plan", "--json", **project).json["generations"] == 14
    typed = shop("plan", *words, "--json", "-s", "BLOOM_ROTATE_EVERY=2 months", **project).json
    assert typed["generations"] == 3
    text = shop("plan", *words, **project).out
    assert "BLOOM_CAPACITY = 10_000_000, window 6 months, error rate 0.0001, " in text
    assert "A first crawl within 1 month has all its URLs in one generation, so plan for" in text
    assert re.search(r"Redis needs [\d.]+ MiB: [\d.]+ MiB for bitmaps \(generations: 6\)", text)
    never = shop("plan", "--window", "never", "--spider", "shop", BLOOM_REMEMBER="scheduled")
    assert "A first crawl" not in never.out
    assert "0 bytes for pending requests" in never.out


def test_the_windows_of_rules_take_memory_too(shop: Call) -> None:
    rules = {"BLOOM_RECRAWL_RULES": [["/list/", "1 day"]]}
    plain, more = (shop("plan", "--json", **one).json["bitmaps"] for one in ({}, rules))
    assert more > 2 * plain


# -- report --


class Page:
    """The tags of a page, and its text."""

    def __init__(self, text: str) -> None:
        self.tags, self.links = re.findall(r"<(\w+)", text), re.findall(r"(?:src|href)=", text)
        self.widths = re.findall(r'<rect width="([^"]+)"', text)
        self.text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def test_a_page_of_generations_and_failed_pages(shop: Call, client: Redis, tmp_path: Path) -> None:
    """Texts are escaped, and it loads nothing. Nothing is changed."""
    key, day = 'a<script>"&', {"1-day": Schedule.of("1 day")}
    bloom = BloomFilter(client, key, window="2 months", windows=day, blocks=3)
    bloom.extend(fingerprints(URLS[:10]))
    bloom.run(bloom.session.add([("1-day", item) for item in fingerprints(URLS[:4])]))
    claim(bloom, URLS[10:13])
    fail(bloom, [f"https://u:{SECRET}@example.com/<img>", *URLS[13:15]], reason="</td><b>")
    project = {"BLOOM_KEY": key, "BLOOM_RECRAWL_AFTER": "2 months"}
    file = tmp_path / "page.html"
    with unchanged(client):
        done = shop("report", str(file), **project)
    assert (done.code, done.out) == (0, f"{file}: 1 filter\n")
    page = Page(file.read_text("utf-8"))
    assert page.tags.count("table") == 3
    assert page.links == []
    assert not {"script", "img", "b"} & {*page.tags}
    assert page.widths == ["100.00%", "40.00%"]
    facts = page.text
    for text in (key, "URLs 14", "Pending 6", "Failed 3", "Window 1-day: 1 day", "</td><b>"):
        assert text in facts
    assert URLS[13] in facts
    assert SECRET not in facts
    assert shop("report", str(file), "--json", **project).json["filters"] == 1


def test_a_page_of_all_filters_names_some_failed_pages(
    shop: Call, bloom: BloomFilter, client: Redis, tmp_path: Path
) -> None:
    fail(bloom, [f"https://example.com/{number}" for number in range(60)])
    other = BloomFilter(client, "other", window="10 days")
    other.extend(map(str, range(200)))
    BloomFilter(client, "forgotten").open()
    bitmaps = [field for field in client.hkeys("{forgotten:0}:ring") if b"default:" in field]
    client.hdel("{forgotten:0}:ring", *bitmaps)
    file = tmp_path / "page.html"
    assert shop("report", str(file), "--all", "--json").json["filters"] == 3
    page = Page(file.read_text())
    assert "Failed pages, 50 of 60" in page.text
    assert page.tags.count("section") == 3
    assert shop("info", "--all").code == 0
