"""Seeds: who knows them can hide pages, and nothing shows them."""

import gc
import json
import logging
from itertools import count

import pytest
import redis
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.dupefilters import Make, shut
from support.loops import in_loop
from support.odd_site import LabOf, page
from support.servers import Server

from scrapy_bloom import BloomDupeFilter, BloomFilter
from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError, StorageError
from scrapy_bloom.bloom.model.hashing import Hasher, offsets

#: No other number has these digits, one after the other.
SEEDS = [4_040_404_001 + 1_009 * number for number in range(17)]
LISTED = {"BLOOM_SEEDS": SEEDS, "BLOOM_BLOCKS": 1, "BLOOM_CAPACITY": 1_000}
VICTIM = Request("https://victim.example/page")


def collide(victim: bytes, seeds: list[int], num_bits: int) -> list[Request]:
    """Return requests that together set all bits of a victim's: one or more each."""
    hasher = Hasher(tuple(seeds), 1)
    missing = set(offsets(hasher.hashes(victim)[1], num_bits))
    chosen = []
    for number in count():
        request = Request(f"https://hostile.example/{number}")
        hit = missing.intersection(offsets(hasher.hashes(fingerprint(request))[1], num_bits))
        if hit:
            chosen.append(request)
            missing -= hit
        if not missing:
            return chosen
    raise AssertionError


def num_bits(dupefilter: BloomDupeFilter) -> int:
    """Of the only bitmap: it follows from settings that are no secret."""
    assert dupefilter.filters
    (layer,) = dupefilter.filters.default.session.held[0].ring.layers
    return layer.num_bits


def test_chosen_urls_hide_a_page_where_the_seeds_are_known_and_only_there(
    make: Make, client: redis.Redis
) -> None:
    listed = make(BLOOM_KEY="listed", **LISTED)
    secret = make(BLOOM_KEY="secret", **{**LISTED, "BLOOM_SEEDS": len(SEEDS)})
    assert num_bits(listed) == num_bits(secret)
    chosen = collide(fingerprint(VICTIM), SEEDS, num_bits(listed))
    assert len(chosen) <= len(SEEDS)
    for dupefilter, is_hidden in ((listed, True), (secret, False)):
        assert not any(map(dupefilter.request_seen, chosen))
        assert dupefilter.request_seen(VICTIM) is is_hidden


@pytest.mark.parametrize(
    ("seeds", "warnings"), [(SEEDS, 1), (json.dumps(SEEDS), 1), (17, 0), ("17", 0), (None, 0)]
)
@in_loop
async def test_one_warning_says_what_to_do_about_listed_seeds(
    make: Make, caplog: pytest.LogCaptureFixture, seeds: object, warnings: int
) -> None:
    windows = {"BLOOM_RECRAWL_RULES": [("/list", "1 day")]}
    await shut(make(BLOOM_REMEMBER="crawled", **{**LISTED, **windows, "BLOOM_SEEDS": seeds}))
    found = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(found) == warnings
    assert all("BLOOM_SEEDS lists" in text and "BLOOM_KEY" in text for text in found)


# -- what shows them --


def shows(text: str, seeds: object = SEEDS) -> bool:
    assert isinstance(seeds, list | tuple)
    return any(str(seed) in text for seed in seeds)


def is_ours(value: object) -> bool:
    return str(type(value).__module__).startswith("scrapy_bloom.")


@pytest.mark.parametrize("seeds", [SEEDS, len(SEEDS)], ids=["listed", "drawn"])
@in_loop
async def test_no_object_shows_seeds(make: Make, server: Server, seeds: object) -> None:
    dupefilter = make(BLOOM_REMEMBER="crawled", **{**LISTED, "BLOOM_SEEDS": seeds})
    assert dupefilter.filters
    bloom = dupefilter.filters.default
    bloom.add("item")
    bloom.info()
    drawn = list(bloom.seeds)
    with server.client() as client:
        live = [BloomFilter(client, "another", seeds=drawn), *filter(is_ours, gc.get_objects())]
        assert len(live) > 50
        assert not [type(one) for one in live if shows(f"{one!r} {one!s}", drawn)]
    await shut(dupefilter)


def test_no_error_shows_seeds(make: Make, client: redis.Redis) -> None:
    other = [seed + 1 for seed in SEEDS]
    make(**LISTED)
    with pytest.raises(FilterMismatchError) as mismatch:
        make(**{**LISTED, "BLOOM_SEEDS": other})
    with pytest.raises(ConfigurationError) as wrong:
        make(**{**LISTED, "BLOOM_SEEDS": [*SEEDS, -1]})
    (key,) = client.keys("*:header")
    client.hset(key, "seeds", json.dumps([*SEEDS, "x"]))
    with pytest.raises(StorageError) as damaged:
        make(**LISTED)
    for error in (mismatch, wrong, damaged):
        text = str(error.getrepr(showlocals=False, style="native"))
        assert not shows(text, SEEDS + other)


def test_the_log_and_stats_of_a_crawl_show_no_seeds(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/1"), "/1": page()})
    done = lab.crawl(BLOOM_SEEDS=json.dumps(SEEDS), LOG_LEVEL="DEBUG", DUPEFILTER_DEBUG=True)
    used = BloomFilter(lab.client, "odd:bloom")
    used.open()
    assert list(used.seeds) == SEEDS
    assert "Overridden settings" in done.log
    assert not shows(done.log + json.dumps(done.stats), used.seeds)
