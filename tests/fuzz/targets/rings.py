"""Stored headers and rings: read or refused; and what is read can be used and stored."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache

from fuzz.mutate import json_text
from fuzz.target import Target, object_in, texts_in
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header, parse_blocks
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, RUNS, SECONDS, Schedule, Span
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing

NOW = 1_700_000_000
DAY = 86_400
#: Times after which a ring is looked at; the last one is the last that a server's clock may show.
TIMES = (0, NOW, NOW + 40 * DAY, 1 << 37)
KEYS = Keys("f")
HEADER = Header(id="0123456789abcdef" * 2, blocks=4, seeds=(5, 7, 11), fingerprinter="a.B")
SCHEDULES = (
    None,
    Schedule(Span(12, HALF_MONTHS), Span(2, HALF_MONTHS)),
    Schedule(Span(3, RUNS), Span(1, RUNS)),
    Schedule(Span(90, SECONDS), Span(30, SECONDS)),
    Schedule(Span(2400, HALF_MONTHS), Span(200, HALF_MONTHS)),
)


@cache
def rings() -> tuple[Ring, ...]:
    """Return rings of all kinds: young, rotated, grown, reconfigured, of many layers."""
    return tuple(_rings())


def _rings() -> Iterator[Ring]:
    headers = (
        HEADER,
        replace(HEADER, order=WRITE_ALL, stagger=True),
        replace(HEADER, counting=True, fingerprinter=""),
    )
    for header in headers:
        for schedule in SCHEDULES:
            config = Config(1_000, 1e-4, schedule, growth=1.5, max_memory=1 << 40)
            ring = Ring.fresh(header, config, NOW, block=3, run="monday")
            yield ring
            for number in range(3):
                full = {layer.name: layer.capacity for layer in ring.layers}
                ring = ring.grow(NOW + number, full).rotate(NOW + number * 40 * DAY, full)
            yield ring.advance(NOW + 200 * DAY, run="tuesday")
            yield ring.reconfigure(replace(config, schedule=SCHEDULES[1]), NOW)
    ring = Ring.fresh(HEADER, Config(1, 0.5, growth=1), NOW)
    for _ in range(300):
        ring = ring.grow(NOW, {layer.name: layer.capacity for layer in ring.layers})
    yield ring


def _seeds() -> Iterator[bytes]:
    texts = [ring_codec.dump(ring) for ring in rings()]
    yield from (text.encode() for text in texts)
    yield b"[" * 100_000
    yield b'{"header":' * 20_000
    # A million layers, and a number of a million digits.
    state = json.loads(texts[0])
    state["generations"][0]["layers"] *= 3_000
    yield json.dumps(state).encode()
    yield texts[0].replace('"since":0', f'"since":{"9" * 10_000}').encode()


def run_ring(data: bytes) -> None:
    """Read a ring, and use it."""
    try:
        ring = ring_codec.parse(data.decode("utf-8", "replace"))
    except ValueError:
        return
    assert ring_codec.parse(ring_codec.dump(ring)) == ring
    use(ring, TIMES[len(data) % len(TIMES)])


def use(ring: Ring, now: int) -> None:
    """Look at a ring as info, lookups, rotation and growth do, at a time."""
    counts = {layer.name: layer.capacity for layer in ring.layers}
    held = CachedRing("v", ring, KEYS)
    held.add(held.pack([1 << 63] * len(ring.header.seeds))).command()
    assert 0 <= ring.error_rate(counts) <= 1
    assert 0 <= ring.error_bound <= 1
    assert ring.count(counts) >= 0
    assert ring.memory > 0
    for generation in ring.generations:
        ring.closes(generation)
        ring.forgotten(generation)
        ring.expires(generation)
    ring.expired(now)
    for following in _following(ring, now, counts):
        assert following.generations
        if following.active.number <= ring_codec.MANY and following.run <= ring_codec.MANY:
            assert ring_codec.parse(ring_codec.dump(following)) == following


def _following(ring: Ring, now: int, counts: dict[str, int]) -> Iterator[Ring]:
    # A stored configuration may be one that no filter can be made by.
    for step in (
        lambda: ring.advance(now, counts, "new"),
        lambda: ring.rotate(now, counts),
        lambda: ring.grow(now, counts),
        lambda: ring.cleared(now),
        lambda: ring.without(list(counts)[::2]),
        lambda: ring.reconfigure(replace(ring.config, schedule=SCHEDULES[3]), now),
    ):
        with suppress(ConfigurationError):
            yield step()


def run_header(data: bytes) -> None:
    """Read the fields of a header, which are text."""
    texts = texts_in(object_in(data))
    with suppress(ValueError):
        parse_blocks(texts.get("blocks"))
    try:
        header = Header.from_fields(texts)
    except ValueError:
        return
    assert Header.from_fields(header.to_fields()) == header
    assert parse_blocks(header.to_fields()["blocks"]) == header.blocks


def _header_seeds() -> Iterator[bytes]:
    for ring in rings():
        yield json.dumps(ring.header.to_fields()).encode()
    fields = HEADER.to_fields()
    for seeds in ("[" * 90_000, "[" + "1," * 40_000 + "1]", "[" + "9" * 80_000 + "]"):
        yield json.dumps(fields | {"seeds": seeds}).encode()


RINGS = Target(run_ring, _seeds, json_text)
HEADERS = Target(run_header, _header_seeds, json_text, max_length=4_000)
