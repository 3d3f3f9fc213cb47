"""A counting filter on a real server against an exact multiset: a stateful property test.

The model knows how often each item was added to each generation, and no counters or layers. The
filter may be wrong at its error rate, here so small that it never is.
"""

import random
from collections import Counter
from collections.abc import Callable

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
from scrapy_bloom.bloom.model.sizing import SATURATED
from scrapy_bloom.bloom.protocol import membership
from scrapy_bloom.bloom.protocol.cached_ring import Verdict

NEW, SEEN = Verdict.NEW, Verdict.SEEN

pytestmark = pytest.mark.each_server(others="slow")

KEY = "model"
#: Generations that are remembered.
GENERATIONS = 3
#: Fixed, so that a failing example fails again; not neighbours (see hashing.py).
SEEDS = tuple(random.Random(7).sample(range(2**32), 40))
#: Few, so that they are added many times.
items = st.integers(0, 40).map(lambda number: f"item {number}".encode())
batches = st.lists(items, max_size=30)
clients = st.integers(0, 2)
#: Enough items that every block has some; they are never added.
PROBES = [f"probe {i}" for i in range(100)]


class Model:
    """A multiset per generation, newest first. Blocks rotate together."""

    def __init__(self) -> None:
        self.generations: list[Counter[bytes]] = [Counter()]

    def __contains__(self, item: bytes) -> bool:
        return any(generation[item] for generation in self.generations)

    def __len__(self) -> int:
        return sum(generation.total() for generation in self.generations)

    def add(self, item: bytes) -> str:
        verdict = SEEN if item in self else NEW
        self.generations[0][item] += 1
        return verdict

    def add_if_absent(self, item: bytes) -> bool:
        return item not in self and self.add(item) == NEW

    def discard(self, item: bytes) -> bool:
        for generation in self.generations:
            if generation[item]:
                generation[item] -= 1
                return True
        return False

    def rotate(self) -> None:
        self.generations = [Counter(), *self.generations][:GENERATIONS]

    def forget(self, age: int, is_lost: Callable[[bytes], bool]) -> None:
        kept = {item: n for item, n in self.generations[age].items() if not is_lost(item)}
        self.generations[age] = Counter(kept)


class CountingMachine(RuleBasedStateMachine):
    """Three clients of one filter, and somebody who loses keys."""

    server: redis.Redis

    @initialize(blocks=st.sampled_from([1, 2, 5]), capacity=st.sampled_from([3, 20, 1_000]))
    def start(self, blocks: int, capacity: int) -> None:
        """Small ones grow by several layers in each generation."""
        self.server.flushall()
        self.blocks, self.capacity = blocks, capacity
        self.model, self.hasher = Model(), Hasher(SEEDS, blocks)
        self.filters = [self._connect() for _ in range(3)]

    def _connect(self) -> BloomFilter:
        return BloomFilter(
            self.server,
            KEY,
            counting=True,
            capacity=self.capacity,
            error_rate=1e-12,
            blocks=self.blocks,
            seeds=SEEDS,
            window=f"{GENERATIONS} runs",
            run="a",
        )

    @rule(who=clients, batch=batches)
    def add(self, who: int, batch: list[bytes]) -> None:
        # A counter that is saturated is never decremented: see test_counting.py.
        there, kept = self.model.generations[0].copy(), []
        for item in batch:
            there[item] += 1
            if there[item] < SATURATED:
                kept.append(item)
        verdicts = self.filters[who].run(
            lambda session: membership.add(session, kept, if_absent=False)
        )
        assert verdicts == [self.model.add(item) for item in kept]

    @rule(who=clients, batch=batches)
    def add_if_absent(self, who: int, batch: list[bytes]) -> None:
        new = [self.model.add_if_absent(item) for item in batch]
        assert self.filters[who].add_many(batch, if_absent=True) == new

    @rule(who=clients, batch=batches)
    def discard(self, who: int, batch: list[bytes]) -> None:
        verdicts = self.filters[who].run(lambda session: membership.discard(session, batch))
        assert verdicts == [self.model.discard(item) for item in batch]

    @rule(who=clients)
    def discard_all_that_is_left(self, who: int) -> None:
        """What was added as often as it was discarded is gone."""
        everything = [
            item for generation in self.model.generations for item in generation.elements()
        ]
        self.discard(who, everything)
        assert len(self.model) == 0

    @rule(who=clients, batch=batches)
    def contains(self, who: int, batch: list[bytes]) -> None:
        assert self.filters[who].contains(batch) == [item in self.model for item in batch]

    @rule(who=clients)
    def rotate(self, who: int) -> None:
        self.filters[who].rotate()
        self.model.rotate()

    @rule(who=clients)
    def restart(self, who: int) -> None:
        self.filters[who] = self._connect()

    @rule(who=clients)
    def clear(self, who: int) -> None:
        self.filters[who].clear()
        self.model = Model()

    @rule()
    def lose_scripts(self) -> None:
        self.server.script_flush()

    @rule(number=st.integers(0, 4), which=st.integers(0, GENERATIONS - 1))
    def lose_a_generation(self, number: int, which: int) -> None:
        """What a block had in it is forgotten, and only that."""
        number %= self.blocks
        self.filters[0].contains(PROBES)
        snapshot = self.filters[0].look()
        assert snapshot is not None
        generations = snapshot.rings[number].generations
        lost = generations[which % len(generations)]
        self.server.delete(*(f"{{{KEY}:{number}}}:{layer.name}" for layer in lost.layers))
        age = generations[0].number - lost.number
        self.model.forget(age, lambda item: self.hasher.block(item) == number)
        self.filters[0].contains(PROBES)  # that it is lost is noticed when the block is used

    @invariant()
    def all_clients_count_what_the_model_does(self) -> None:
        assert {len(bloom) for bloom in self.filters} == {len(self.model)}


def test_the_filter_is_a_multiset(client: redis.Redis) -> None:
    class Machine(CountingMachine):
        server = client

    run_state_machine_as_test(
        Machine,
        settings=examples(30, stateful_step_count=25, suppress_health_check=list(HealthCheck)),
    )
