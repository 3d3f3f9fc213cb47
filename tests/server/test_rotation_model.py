"""Filters on a real server agree with exact sets, whatever clients, clocks and lost keys do."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.clock import MOVED_TO, MovedServer
from support.examples import examples
from support.rotation_model import Block

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import Hasher
from scrapy_bloom.bloom.model.schedule import DAY, Schedule

pytestmark = pytest.mark.each_server(others="slow")

KEY, RATE = "shop", 1e-12
#: Fixed and no neighbours, with an error rate at which no test meets a false positive.
SEEDS = tuple(random.Random(7).sample(range(2**32), 40))
WINDOWS = ["1 month", "2 months", "5 months", "3 days", "36 hours"]
CAPACITIES = [1, 5, 20, 200]
ITEMS = list(map(str, range(300)))
batches = st.lists(st.sampled_from(ITEMS), max_size=30)
clients = st.integers(0, 2)


class Machine(RuleBasedStateMachine):
    """Three clients of one filter, a clock that goes on, and somebody who loses keys."""

    moved: MovedServer
    server: redis.Redis
    ring: str

    @initialize(
        blocks=st.sampled_from([1, 2, 8]),
        capacity=st.sampled_from(CAPACITIES),
        window=st.sampled_from([*WINDOWS, "never"]),
    )
    def start(self, blocks: int, capacity: int, window: str) -> None:
        self.server.flushall()
        self.hasher, self.capacity = Hasher(SEEDS, blocks), capacity
        self.blocks = [self._new_block() for _ in range(blocks)]
        self.looks = 0
        self.has_window = window != "never"
        self._set_time(int(MOVED_TO.timestamp()))
        self.windows = [window] * 3
        self.filters = [self._connect(window) for _ in range(3)]

    def _connect(self, window: str) -> BloomFilter:
        options: dict[str, Any] = {"capacity": self.capacity, "error_rate": RATE, "seeds": SEEDS}
        options |= {"blocks": self.hasher.blocks, "ring": self.ring}
        return BloomFilter(self.server, KEY, window=window, **options)

    def _set_time(self, now: int) -> None:
        self.now = now
        self.moved.set_time(now + 0.5)  # keys expire a millisecond after their time
        for block in self.blocks:
            block.expire(now)

    def _new_block(self) -> Block:
        return Block(write_all=self.ring == "write-all")

    def _block(self, item: str) -> Block:
        return self.blocks[self.hasher.block(item.encode())]

    def _schedule(self, who: int) -> Schedule:
        return Schedule.of(self.windows[who])

    def _seen(self, who: int, batch: Sequence[str]) -> list[bool]:
        schedule = self._schedule(who)
        for item in batch:
            self._block(item).use(schedule, self.now)
        return [item in self._block(item).remembered(schedule, self.now) for item in batch]

    # -- rules --

    @rule(who=clients, batch=batches)
    def add_many(self, who: int, batch: list[str]) -> None:
        schedule = self._schedule(who)
        expected = [self._block(item).add(item, schedule, self.now) for item in batch]
        assert self.filters[who].add_many(batch) == expected

    @rule(who=clients, batch=batches, days=st.sampled_from([0, 1, 2, 3, 15, 20, 31, 62, 100, 366]))
    def add_after_a_while(self, who: int, batch: list[str], days: int) -> None:
        self._set_time(self.now + days * DAY + 1)
        self.add_many(who, batch)

    @rule(who=clients, batch=batches, before=st.sampled_from([0, 1]))
    def add_at_the_next_boundary(self, who: int, batch: list[str], before: int) -> None:
        self._set_time(max(self.now, self._schedule(who).bounds(self.now)[1] - before))
        self.add_many(who, batch)

    @precondition(lambda self: self.has_window)
    @rule(who=clients, window=st.sampled_from(WINDOWS))
    def run_with_another_window(self, who: int, window: str) -> None:
        """One client is started with another window, and the others stay.

        What was made without a window has no date at which it goes by itself: test_ring.py has it.
        """
        self.windows[who] = window
        self.filters[who] = self._connect(window)

    @rule(who=clients)
    def clear(self, who: int) -> None:
        self.filters[who].clear()
        self.blocks = [self._new_block() for _ in self.blocks]
        self.blocks[0].use(self._schedule(who), self.now)  # it's opened again, to keep the seeds

    @rule()
    def flush(self) -> None:
        self.server.flushall()
        self.blocks = [self._new_block() for _ in self.blocks]

    @rule()
    def lose_scripts(self) -> None:
        self.server.script_flush()

    @rule(number=st.integers(0, 7))
    def lose_a_block(self, number: int) -> None:
        number %= len(self.blocks)
        if keys := self.server.keys(f"{{{KEY}:{number}}}:*"):
            self.server.delete(*keys)
        self.blocks[number] = self._new_block()

    # -- invariants --

    @invariant()
    def what_is_found_is_what_the_model_has(self) -> None:
        """Each client looks in its turn, so that the others' pictures are old."""
        self.looks += 1
        who = self.looks % 3
        assert self.filters[who].contains(ITEMS) == self._seen(who, ITEMS)
        # What a shorter window has forgotten may be in two generations of a longer one.
        tested = [one.tested(self._schedule(who), self.now) for one in self.blocks]
        assert len(self.filters[who]) == sum(len(one.items) for own in tested for one in own)
        assert self.filters[who].info().windows["default"].error_rate <= 64 * RATE

    @invariant()
    def with_a_window_each_key_expires(self) -> None:
        if "never" in self.windows or not self.has_window:
            return
        names = [name.decode() for name in self.server.scan_iter()]
        assert all(self.server.expiretime(name) > self.now for name in names)

    def teardown(self) -> None:
        """With a window, a filter that's no longer used goes by itself."""
        if self.has_window:
            self.moved.move(3 * 366 * DAY)
            assert not self.server.keys()


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_the_filter_is_the_model(moved: MovedServer, ring: str) -> None:
    with moved.client() as client:
        # One class each, because hypothesis keeps the examples of different machines apart.
        machine = type("OnServer", (Machine,), {"moved": moved, "server": client, "ring": ring})
        run_state_machine_as_test(
            machine,
            settings=examples(40, stateful_step_count=25, suppress_health_check=list(HealthCheck)),
        )
