"""Inputs that fuzzing has found: see `docs/testing.md`. Each raised an undocumented error."""

import json
from typing import Any

import pytest
from fuzz.targets import TARGETS
from scrapy import Request

from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, Schedule, Span
from scrapy_bloom.crawl.request_codec import dump, load
from scrapy_bloom.crawl.workers import Process, Worker

HEADER = Header(id="0" * 32, blocks=1, seeds=(5, 7, 11))
NOW = 1_700_000_000
RING = Ring.fresh(
    HEADER, Config(100, 1e-3, Schedule(Span(4, HALF_MONTHS), Span(2, HALF_MONTHS))), NOW
)
STATE = ring_codec.dump(RING)
UNSENT = STATE.replace('"fingerprinter":""', r'"fingerprinter":"\ud800"')


def replies(operation: str, *given: Any, state: str = STATE) -> bytes:
    return json.dumps({"operation": operation, "ring": state, "replies": given}).encode()


def worker(**changes: Any) -> str:
    """A stored worker, with other values."""
    fields = json.loads(Worker("w", NOW, 30.0, Process("h", 1, "", 1)).describe())
    return f"w {json.dumps(fields | changes, separators=(',', ':'))}"


NESTED = json.loads("[" * 900 + "]" * 900)
EXAMPLES = {
    # The server's clock beyond all dates: OverflowError, and ValueError before the year 1.
    "late clock": ("replies", replies("info", None, None, ["ok", "v1", STATE, "9" * 20])),
    "early clock": ("replies", replies("info", None, None, ["ok", "v1", STATE, "-99999999999999"])),
    # Another answer than to which keys there are: ValueError.
    "keys": ("replies", replies("keys", None, None, ["x", "-5"])),
    # Text that cannot be sent: UnicodeEncodeError when the header was restored from the ring.
    "surrogate": ("replies", replies("open", ["missing", "v1", UNSENT, "1"], state=UNSENT)),
    # A worker's host that is a list of lists: RecursionError when its entry was written again.
    "host": (
        "claims",
        json.dumps({"claims": {}, "workers": {worker(host=NESTED): str(NOW)}}).encode(),
    ),
    # A list of a million million seeds, which was read to its end; numbers without a repr.
    "seeds": ("settings", b'BLOOM_SEEDS:"!long"'),
    # Seeds, which are secret, were shown.
    "secret": ("settings", b'BLOOM_SEEDS={"hunter2"}'),
    "a status": ("settings", b'BLOOM_CRAWLED_STATUSES:["!mute"]'),
    "statuses": ("settings", b'BLOOM_CRAWLED_STATUSES:"!huge"'),
    "window": ("settings", b'BLOOM_RECRAWL_RULES:[["a",{"recrawl_after":"1 day","x":"!huge"}]]'),
    "rule": ("settings", b'BLOOM_RECRAWL_RULES:["!huge"]'),
    "a key": ("settings", b'BLOOM_KEY="{' + b"9" * 9_000 + b'"'),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_was_found(name: str) -> None:
    target, data = EXAMPLES[name]
    TARGETS[target].run(data)


# -- the same without the targets, and what the errors say --


def test_a_request_without_a_method() -> None:
    """It came back as GET."""
    request = Request("https://example.com/", method="")
    assert load(dump(request, None), None).method == ""
