"""A ring as script calls: which keys, in which order, and which offsets belong to which layer."""

from dataclasses import replace
from struct import Struct

import pytest
import redis

from scrapy_bloom.bloom.model.generations import Config, Layer
from scrapy_bloom.bloom.model.hashing import offsets
from scrapy_bloom.bloom.model.header import WRITE_ALL, WRITE_NEWEST, Header
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import SECONDS, Schedule, Span
from scrapy_bloom.bloom.protocol.cached_ring import CachedRing
from scrapy_bloom.bloom.protocol.scripts import Call

NOW, DAY = 1_700_000_000, 86_400
HASHES = [2**64 - 1, 12345678901234567890, 42]
HEADER = Header("0" * 32, 8, (5, 7, 11))


def ring(order: str) -> Ring:
    """Two generations: the older one has grown, the younger one is twice as large as that was."""
    schedule = Schedule(Span(2 * DAY, SECONDS), Span(DAY, SECONDS))
    fresh = Ring.fresh(replace(HEADER, order=order), Config(800, 1e-2, schedule), NOW, block=3)
    grown = fresh.grow(NOW, {"0.0": fresh.layers[0].capacity})
    config = replace(fresh.config, capacity=1_600)
    return grown.reconfigure(config, NOW).advance(NOW + DAY)


def held(order: str) -> CachedRing:
    return CachedRing("v", ring(order), Keys("k"))


def names(call: Call) -> list[str]:
    return [key.removeprefix("{k:3}:") for key in call.keys]


def offsets_by_layer(groups: object, packed: object, layers: list[Layer]) -> list[list[int]]:
    """Read a URL's offsets as the scripts do."""
    assert isinstance(groups, bytes)
    assert isinstance(packed, bytes)
    assert len(groups) == len(layers)
    return [list(Struct("<3I").unpack_from(packed, 12 * group)) for group in groups]


@pytest.mark.parametrize(
    ("order", "written", "tested"),
    [(WRITE_NEWEST, ["1.0"], ["0.0", "0.1"]), (WRITE_ALL, ["0.1", "1.0"], ["0.0"])],
)
def test_a_claim_names_the_written_layers_first_and_then_those_only_tested(
    order: str, written: list[str], tested: list[str]
) -> None:
    mine = held(order)
    call = mine.add(mine.pack(HASHES))
    assert names(call) == ["ring", *written, *tested]
    v, ends, k, groups, sizes, packed, bits, room, *counts = call.args
    assert (v, ends, k, sizes, bits) == ("v", mine.ring.ends, 3, 3, 1)
    assert counts == [f"n:{name}" for name in written]
    layers = {layer.name: layer for layer in mine.ring.layers}
    assert room == b"".join(
        Struct("<IQ").pack(layers[name].memory, layers[name].capacity) for name in written
    )
    named = [layers[name] for name in [*written, *tested]]
    expected = [offsets(HASHES, layer.num_bits) for layer in named]
    assert offsets_by_layer(groups, packed, named) == expected


def test_layers_of_one_size_share_their_offsets() -> None:
    """A ring that does not grow costs as many bytes a URL as a single bitmap."""
    schedule = Schedule(Span(64 * DAY, SECONDS), Span(DAY, SECONDS))
    full = Ring.fresh(HEADER, Config(800, 0.5, schedule, growth=0), NOW)
    for _ in range(63):
        full = full.rotate(NOW)
    mine = CachedRing("v", full, Keys("k"))
    assert len(mine.add(mine.pack(HASHES)).keys) == 65
    assert len(mine.pack(HASHES)) == 12
    assert mine.max_urls < CachedRing("v", full.cleared(NOW), Keys("k")).max_urls


# -- calls as they are sent --


def sent(call: Call) -> bytes:
    """What redis-py sends for a call."""
    words = ("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)
    return b"".join(redis.Connection().pack_command(*words))


@pytest.mark.parametrize("order", [WRITE_NEWEST, WRITE_ALL])
@pytest.mark.parametrize("counting", [False, True])
def test_calls_are_written_out_as_redis_py_does(order: str, counting: bool) -> None:
    mine = ring(order)
    mine = replace(mine, header=replace(mine.header, counting=counting))
    taken = CachedRing("v", mine, Keys("gr\u00fcn"))
    packed = taken.pack(HASHES)
    for if_absent in (False, True):
        frame = taken.add_one(packed, if_absent=if_absent)
        assert frame == sent(taken.add(packed, if_absent=if_absent))
    request = ("ab", "cd", '{"url":"gr\u00fcn"}')
    frame = taken.claim_one(packed, ("me", "n.1", 7, 60, *request))
    assert frame == sent(taken.claim(packed, "me", "n.1", request, limits=(7, 60)))
