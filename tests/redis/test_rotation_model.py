"""The real filter on a real server whose clock jumps, against exact sets: a stateful property test.

The model knows what the filter is meant to remember: per block, the items of each generation. It
knows no bitmaps, no layers and no scripts.
"""

from collections.abc import Callable, Sequence

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
from support.calls import carry_out
from support.clock import MOVED_TO, MovedServer
from support.examples import examples
from support.rotation import (
    ERROR_RATE,
    GOING,
    KEYS,
    SEEDS,
    assert_keys,
    assert_ttls,
    connect,
    stored_rings,
)
from support.rotation_model import Block, Settings

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import Hasher, offsets
from scrapy_bloom.bloom.protocol.membership import add

pytestmark = pytest.mark.each_server(others="slow")

DAY = 86_400
#: Times stay after 2015.
EARLIEST = 1_420_070_400

WINDOWS: list[tuple[str, str | None]] = [
    ("5 months", None),
    ("1 month", None),
    ("6 months", "3 months"),
    ("3 days", "1 day"),
    ("36h", None),
    ("1 run", None),
    ("4 runs", "2 runs"),
    ("never", None),
]
#: Capacity and growth: small, so that layers grow.
SIZES: list[tuple[int, float]] = [(1, 2), (5, 3), (20, 1), (20, 8), (200, 2)]

ITEMS = list(map(str, range(301)))
#: What finds, and brings up to date, all that a filter remembers.
LOOKS: list[Callable[[BloomFilter], int]] = [
    len,
    lambda bloom: bloom.info().count,
    lambda bloom: sum(bloom.contains(ITEMS)),
    lambda bloom: sum(found.seen for found in bloom.find_all(ITEMS)),
]

clients = st.integers(0, 2)
items = st.sampled_from(ITEMS)
batches = st.lists(items, max_size=30)
sizes, windows = st.sampled_from(SIZES), st.sampled_from(WINDOWS)
places = st.integers(0, 15)
#: After which a client is killed; a claim that opens a filter of 16 blocks takes about 50.
numbers_of_calls = st.integers(0, 50)
damages = st.sampled_from(["deleted", "truncated", "not counted"])


class RotationMachine(RuleBasedStateMachine):
    """Three clients of one filter, a clock that jumps, and somebody who loses keys."""

    moved: MovedServer
    server: redis.Redis
    order: str

    @initialize(
        blocks=st.sampled_from([1, 2, 16]), stagger=st.booleans(), size=sizes, window=windows
    )
    def start(
        self, blocks: int, stagger: bool, size: tuple[int, float], window: tuple[str, str | None]
    ) -> None:
        self.server.flushall()
        self.hasher = Hasher(SEEDS, blocks)
        self.stagger = stagger
        self.settings = Settings(size, window, "run 0")
        self.all_settings = {self.settings}
        self.looks = 0
        self._set_time(int(MOVED_TO.timestamp()))
        self._start_anew()
        self.filters = [self._connect() for _ in range(3)]
        self.settings_of = [self.settings] * 3

    # -- the world --

    def _connect(self) -> BloomFilter:
        (capacity, growth), (window, period) = self.settings.size, self.settings.window
        options = {"ring": self.order, "stagger": self.stagger, "blocks": self.hasher.blocks}
        options |= {"capacity": capacity, "growth": growth, "run": self.settings.run}
        return connect(self.server, window, period=period, **options)

    def _reconnect(self, who: int) -> None:
        self.filters[who] = self._connect()
        self.settings_of[who] = self.settings

    def _reconnect_all(self) -> None:
        """Before a ring is made anew: by a client of other settings, it would have those."""
        for who in range(3):
            if self.settings_of[who] != self.settings:
                self._reconnect(who)

    def _start_anew(self) -> None:
        #: When a client was last killed.
        self.killed = 0
        self.left: set[str] = set()
        self.blocks = [self._new_block(number) for number in range(self.hasher.blocks)]

    def _new_block(self, number: int) -> Block:
        part = (number, self.hasher.blocks) if self.stagger else (0, 1)
        write_all = self.order == "write-all"
        block = Block(part, write_all, self.now, self.settings.run)
        block.schedule = self.settings.schedule
        return block

    def _set_time(self, now: int) -> None:
        self.now = now
        self.moved.set_time(now + 0.5)  # keys expire a millisecond after their time

    def _jump(self, time: int) -> None:
        runs = self.settings.schedule is not None and self.settings.schedule.counts_runs
        # In use at least every 300 days, windows in runs do not expire.
        self._set_time(max(min(time, self.now + 300 * DAY) if runs else time, EARLIEST))
        if self._mixed():  # what has expired is made anew under the settings of today
            self._connect().open()
        self._advance(self.settings.run)

    def _mixed(self) -> bool:
        return any(other != self.settings for other in self.settings_of)

    def _advance(self, run: str) -> None:
        for block in self.blocks:
            block.advance(self.now, run)

    def _block(self, item: str) -> int:
        return self.hasher.hashes(item.encode())[0]

    def _expected_claim(self, batch: Sequence[str]) -> list[bool]:
        return [self.blocks[self._block(item)].add(item) for item in batch]

    def _seen(self, batch: Sequence[str]) -> list[bool]:
        return [item in self.blocks[self._block(item)].remembered for item in batch]

    def _probe(self, number: int) -> str:
        """Return an item of a block."""
        return next(item for item in ITEMS if self._block(item) == number)

    # -- rules --

    @rule(who=clients, batch=batches)
    def add_many(self, who: int, batch: list[str]) -> None:
        assert self.filters[who].add_many(batch) == self._expected_claim(batch)

    @rule(who=clients, item=items)
    def add(self, who: int, item: str) -> None:
        assert [self.filters[who].add(item)] == self._expected_claim([item])

    @rule(who=clients, batch=batches)
    def contains(self, who: int, batch: list[str]) -> None:
        assert self.filters[who].contains(batch) == self._seen(batch)

    @rule(who=clients, batch=batches, number=places, before=st.sampled_from([0, 1]))
    def claim_at_the_next_boundary(
        self, who: int, batch: list[str], number: int, before: int
    ) -> None:
        boundary = self.blocks[number % len(self.blocks)].next_boundary(self.now)
        if boundary is not None and boundary - before > self.now:
            self._jump(boundary - before)
        self.add_many(who, batch)

    @rule(who=clients, batch=batches, days=st.sampled_from([0, 1, 2, 3, 20, 31, 62, 100, 200, 366]))
    def claim_after_a_while(self, who: int, batch: list[str], days: int) -> None:
        self._jump(self.now + days * DAY + 1)
        self.add_many(who, batch)

    @rule(who=clients, batch=batches)
    def what_is_found_is_new_again_when_it_is_said_to_be(self, who: int, batch: list[str]) -> None:
        found = dict(zip(batch, self.filters[who].find_all(batch), strict=True))
        assert [info.seen for info in found.values()] == self._seen([*found])
        item, until = max(
            ((item, info.until) for item, info in found.items()),
            key=lambda pair: pair[1],
            default=("", 0),
        )
        if until <= self.now or self._mixed():
            return
        self._jump(until - 1)
        self.what_is_counted_is_what_the_model_has()  # which brings all blocks up to date
        assert self.filters[who].contains([item]) == [True]
        self._jump(until)
        assert self.filters[who].contains([item]) == [False]

    @rule(seconds=st.sampled_from([1, 10, 3_600, DAY, 20 * DAY, 100 * DAY, 400 * DAY]))
    def clock_goes_back(self, seconds: int) -> None:
        self._jump(self.now - seconds)

    @rule(who=clients)
    def new_run(self, who: int) -> None:
        """The others are stragglers of the old one from now on."""
        before = self.settings
        number = int(before.run.split()[1])
        self._change_settings(who, Settings(before.size, before.window, f"run {number + 1}"))

    @rule(who=clients, size=sizes, window=windows, both=st.booleans())
    def other_settings(
        self, who: int, size: tuple[int, float], window: tuple[str, str | None], both: bool
    ) -> None:
        """One client is started with other settings; the others are stale."""
        size = size if both else self.settings.size
        self._change_settings(who, Settings(size, window, self.settings.run))

    def _change_settings(self, who: int, settings: Settings) -> None:
        before, self.settings = self.settings, settings
        self.all_settings.add(self.settings)
        schedule = self.settings.schedule
        counts_runs = schedule is not None and schedule.counts_runs
        was_runs = any(b.schedule is not None and b.schedule.counts_runs for b in self.blocks)
        for other in range(3):
            # Who is not open yet would apply its own settings, or show another run, when it is.
            if self.filters[other].header is None or (counts_runs and not was_runs):
                self._reconnect(other)
        self._reconnect(who)
        if (settings.size, schedule) != (before.size, before.schedule):
            for block in self.blocks:
                block.reconfigure(schedule, self.now)
        self._advance(self.settings.run)
        self.filters[who].open()

    @precondition(lambda self: self.settings.schedule is not None)
    @rule(who=clients)
    def rotate(self, who: int) -> None:
        self.filters[who].rotate()
        for block in self.blocks:
            block.rotate(self.now)

    @rule(who=clients)
    def clear(self, who: int) -> None:
        self.filters[who].clear()
        for block in self.blocks:
            block.clear(self.now)

    @rule(who=clients, batch=batches, calls=numbers_of_calls, anew=st.booleans())
    def killed_in_a_claim(self, who: int, batch: list[str], calls: int, anew: bool) -> None:
        """After any call of it: what is recorded is seen by the next client, all else is new."""
        if anew:
            self._reconnect(who)
        bloom = self.filters[who]
        carry_out(bloom._driver, add(bloom.session, [item.encode() for item in batch]), calls)
        self.killed = self.now
        self._reconnect(who)
        for item, seen in zip(batch, self.filters[who].contains(batch), strict=True):
            if seen:
                self.blocks[self._block(item)].add(item)

    @rule(who=clients)
    def restart(self, who: int) -> None:
        self._reconnect(who)

    @rule()
    def flush(self) -> None:
        self.server.flushall()
        for who in range(3):  # who holds a ring would make the new ones like it, with its runs
            self._reconnect(who)
        self._start_anew()

    @rule()
    def lose_scripts(self) -> None:
        self.server.script_flush()

    @rule()
    def lose_header(self) -> None:
        self.server.delete(KEYS.header())
        for who in range(3):  # who has made the lost one last to the same end would not ask for it
            self._reconnect(who)
        self.filters[0].open()

    @rule(who=clients, number=places, calls=numbers_of_calls)
    def lose_ring(self, who: int, number: int, calls: int) -> None:
        number %= len(self.blocks)
        layers = stored_rings(self.server)[number].layers
        self.left |= {KEYS.layer(number, layer.name) for layer in layers}
        self.server.delete(KEYS.ring(number))
        self._reconnect_all()
        block = self.blocks[number] = self._new_block(number)
        if len(self.blocks) > 1:  # it takes after the others
            like = self.blocks[1 if number == 0 else 0]
            block.run, block.runs = like.run, list(like.runs)
            block.generations[0].run = block.run
        self.killed_in_a_claim(who, [self._probe(number)], calls, anew=False)
        self.contains(who, [self._probe(number)])

    @rule(who=clients, number=places, which=places, last=st.booleans(), how=damages)
    def lose_layer(self, who: int, number: int, which: int, last: bool, how: str) -> None:
        """Its items are forgotten; under write-all those that no older generation has.

        Other damage than that it is gone is noticed where a layer is written.
        """
        number %= len(self.blocks)
        block, ring = self.blocks[number], stored_rings(self.server)[number]
        which %= len(ring.generations)
        generation, layers = block.generations[which], ring.generations[which].layers
        write_all = self.order == "write-all"
        layer = layers[-1 if last or write_all else 0]
        name = KEYS.layer(number, layer.name)
        bitmap = self.server.get(name)
        assert isinstance(bitmap, bytes)
        if how == "deleted" or not (write_all or (which == 0 and layer is layers[-1])):
            self.server.delete(name)
        elif how == "truncated":
            self.server.set(name, b"\x00")
        else:
            self.server.hdel(KEYS.ring(number), f"n:{layer.name}")
        generation.items -= {
            item
            for item in generation.items
            if all(
                bitmap[offset // 8] >> (7 - offset % 8) & 1
                for offset in offsets(self.hasher.hashes(item.encode())[1], layer.num_bits)
            )
        }
        if which and (write_all or len(layers) == 1):
            block.generations.pop(which)
        self.add_many(who, [self._probe(number)])

    # -- invariants --

    @invariant()
    def what_is_counted_is_what_the_model_has(self) -> None:
        """Each client looks in its turn: the others are stale."""
        count, bloom = LOOKS[self.looks % len(LOOKS)], self.filters[self.looks % 3]
        assert count(bloom) == sum(len(block.remembered) for block in self.blocks)
        assert bloom.info().error_bound <= ERROR_RATE * len(self.all_settings) * (1 + 1e-9)
        self.looks += 1

    @invariant()
    def what_is_stored_is_what_the_rings_name(self) -> None:
        assert_keys(self.server, going=self.now - self.killed <= GOING, left=self.left)
        assert_ttls(self.server, left=self.left)
        rings = stored_rings(self.server)
        expected = [len(block.generations) for block in self.blocks]
        assert [len(rings[n].generations) for n in range(len(self.blocks))] == expected

    def teardown(self) -> None:
        """With a window, a filter that is no longer used goes by itself."""
        names = {name.decode() for name in self.server.scan_iter()} - self.left
        end = self.server.expiretime(KEYS.header())
        if end > 0:
            self.moved.set_time(end + 1)
            assert not self.server.exists(*names)


@pytest.mark.parametrize("order", ["write-newest", "write-all"])
def test_the_filter_is_the_model(moved: MovedServer, order: str) -> None:
    with moved.client() as client:
        # One class each: hypothesis keeps the examples of different machines apart.
        machine = type(
            "Machine", (RotationMachine,), {"moved": moved, "server": client, "order": order}
        )
        run_state_machine_as_test(
            machine,
            settings=examples(30, stateful_step_count=30, suppress_health_check=list(HealthCheck)),
        )
