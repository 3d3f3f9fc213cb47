"""A ring as script calls: how many bytes a URL costs, and how calls are written out."""

from dataclasses import replace

import pytest
import redis

from scrapy_bloom.bloom.model.generations import Config
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
