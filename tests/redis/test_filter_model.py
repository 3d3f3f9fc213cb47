"""The real filter on a real server against exact sets: a stateful property test.

The filter may say "seen" wrongly at its error rate (here so small that it never happens), and may
never say "new" or "absent" wrongly.
"""

import random

import pytest
import redis
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support.examples import examples

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import Hasher

pytestmark = pytest.mark.each_server

KEY = "model"
items = st.binary(max_size=3) | st.text(max_size=3)
clients = st.integers(0, 2)
#: Fixed, so that a failing example fails again; not neighbours (see hashing.py).
SEEDS = tuple(random.Random(7).sample(range(2**32), 40))
#: Enough items that every block has some.
PROBES = [f"probe {i}" for i in range(300)]


class Model:
    """What the filter is meant to be: a set that all clients share."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()

    def add(self, item: str | bytes) -> bool:
        encoded = encode(item)
        new = encoded not in self.seen
        self.seen.add(encoded)
        return new


def encode(item: str | bytes) -> bytes:
    return item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item


class FilterMachine(RuleBasedStateMachine):
    """Three clients of one filter, and somebody who loses keys."""

    server: redis.Redis

    @initialize(blocks=st.sampled_from([1, 2, 16]))
    def start(self, blocks: int) -> None:
        self.server.flushall()
        self.model = Model()
        self._connect(blocks).open()
        self.filters = [self._connect() for _ in range(3)]

    def _connect(self, blocks: int | None = None) -> BloomFilter:
        return BloomFilter(
            self.server,
            KEY,
            capacity=10_000,
            error_rate=1e-12,
            blocks=blocks,
            seeds=SEEDS,
        )

    @rule(who=clients, batch=st.lists(items, max_size=30))
    def claim(self, who: int, batch: list[str | bytes]) -> None:
        assert self.filters[who].add_many(batch) == [self.model.add(item) for item in batch]

    @rule(who=clients, item=items)
    def add(self, who: int, item: str | bytes) -> None:
        assert self.filters[who].add(item) == self.model.add(item)

    @rule(who=clients, batch=st.lists(items, max_size=30))
    def contains(self, who: int, batch: list[str | bytes]) -> None:
        expected = [encode(item) in self.model.seen for item in batch]
        assert self.filters[who].contains(batch) == expected

    @rule(who=clients)
    def clear(self, who: int) -> None:
        self.filters[who].clear()
        self.model.seen.clear()

    @rule(who=clients)
    def restart(self, who: int) -> None:
        """A worker that dies leaves nothing half done; the next one opens the same filter."""
        self.filters[who] = self._connect()

    @rule()
    def flush(self) -> None:
        self.server.flushall()
        self.model.seen.clear()

    @rule(blocks=st.sampled_from([1, 2, 16]))
    def create_anew(self, blocks: int) -> None:
        """Somebody deletes the filter and creates one of another geometry."""
        self.server.flushall()
        self.model.seen.clear()
        self._connect(blocks).open()

    @rule()
    def lose_scripts(self) -> None:
        self.server.script_flush()

    @rule()
    def lose_header(self) -> None:
        self.server.delete(f"{{{KEY}:0}}:header")

    @rule(what=st.sampled_from(["ring", "layer"]), block=st.integers(0, 15))
    def lose_a_block(self, what: str, block: int) -> None:
        """The items of that block are forgotten, and only those."""
        pattern = f"{{{KEY}:{block}}}:" + ("ring" if what == "ring" else "[0-9]*")
        blocks = self.filters[0].open().blocks
        keys = self.server.keys(pattern)
        if not keys:
            return
        self.server.delete(*keys)
        hasher = Hasher(SEEDS, blocks)
        self.model.seen = {item for item in self.model.seen if hasher.hashes(item)[0] != block}
        self.filters[0].contains(PROBES)  # that it is lost is noticed when the block is used

    @invariant()
    def nothing_is_recorded_twice(self) -> None:
        """Also: every client counts the same."""
        assert {len(bloom) for bloom in self.filters} == {len(self.model.seen)}


@pytest.mark.usefixtures("client")
def test_the_filter_is_the_model(client: redis.Redis) -> None:
    class Machine(FilterMachine):
        server = client

    run_state_machine_as_test(
        Machine,
        settings=examples(60, stateful_step_count=30, suppress_health_check=list(HealthCheck)),
    )
