"""A block's ring against its definitions: what is remembered, for how long, and at what error rate.

Random histories of a ring (time that jumps, growth, rotation, changed settings, losses) keep all
that a ring promises; a second, much simpler model says what it has to remember.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.rings import DAY, HOUR, NOW, YEAR, all_full, fresh, headers, numbers, schedule

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model import ledger, ring_codec
from scrapy_bloom.bloom.model.generations import (
    MAX_FURTHER_LAYERS,
    MAX_LAYERS,
    Config,
    Counts,
    Layer,
    forgotten_before,
)
from scrapy_bloom.bloom.model.header import WRITE_ALL
from scrapy_bloom.bloom.model.ledger import LedgerEntry
from scrapy_bloom.bloom.model.ring import (
    RING_OUTLIVES_SECONDS,
    RUNS_EXPIRE_SECONDS,
    RUNS_KEPT,
    SLACK_SECONDS,
    Ring,
)
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, MAX_GENERATIONS, RUNS
from scrapy_bloom.bloom.model.sizing import MAX_GROWN_BITS, MAX_LAYER_BITS, plan

schedules = st.sampled_from(
    [
        None,
        schedule(2, 2, HALF_MONTHS),
        schedule(12, 2, HALF_MONTHS),
        schedule(48, 24, HALF_MONTHS),
        schedule(1, 1),
        schedule(DAY, DAY),
        schedule(6 * HOUR, HOUR),
        schedule(MAX_GENERATIONS * HOUR, HOUR),
        schedule(1, 1, RUNS),
        schedule(5, 1, RUNS),
        schedule(6, 2, RUNS),
    ]
)
configs = st.builds(
    Config,
    capacity=st.integers(1, 50) | st.integers(1, 10**5),
    error_rate=st.sampled_from([1e-6, 1e-3, 0.1]),
    schedule=schedules,
    growth=st.sampled_from([0, 1, 1.5, 2, 64]),
    max_memory=st.none() | st.integers(10**3, 10**8),
)
jumps = (
    st.integers(-HOUR, HOUR)
    | st.integers(-7 * DAY, 70 * DAY)
    | st.sampled_from([0, 1, -1, DAY, 31 * DAY, YEAR, -YEAR])
)
runs = st.none() | st.sampled_from("abc") | st.integers(0, 100).map(str)


@dataclass
class History:
    """A ring on its way, with the exact counts, the clock, and by what its layers were made."""

    ring: Ring
    now: int
    counts: dict[str, int] = field(default_factory=dict)
    made_by: dict[str, tuple[int, Config]] = field(default_factory=dict)
    changes: int = 0
    names: set[str] = field(default_factory=set)
    #: By the time of the record, the generations that took pages.
    recorded: dict[int, set[int]] = field(default_factory=dict)
    #: Whether its clock never goes back, and whether no generation was lost but the oldest ones.
    is_forward: bool = False
    is_in_order: bool = True

    def __post_init__(self) -> None:
        self.took(self.ring)

    def took(self, ring: Ring) -> None:
        """Go on with a ring; a layer that was not there is new, under a name never used before."""
        known = {layer.name: layer for layer in self.ring.layers} if self.made_by else {}
        for layer in ring.layers:
            if layer.name in known:
                assert layer == known[layer.name]
                continue
            assert layer.name not in self.names
            self.names.add(layer.name)
            self.made_by[layer.name] = self.changes, ring.config
            self.counts[layer.name] = 0
        self.ring = ring


@st.composite
def histories(draw: st.DrawFn, *, forward: bool = False) -> History:
    """Draw a ring that can be reached. What it promises is checked at every step."""
    header, config = draw(headers), draw(configs)
    now = draw(st.integers(20 * YEAR, 80 * YEAR))
    block = draw(st.integers(0, header.blocks - 1))
    try:
        history = History(Ring.fresh(header, config, now, block=block, run=draw(runs)), now)
    except ConfigurationError:
        history = History(
            Ring.fresh(header, replace(config, max_memory=None), now, block=block), now
        )
    history.is_forward = forward or draw(st.booleans())
    for _ in range(draw(st.integers(0, 12))):
        before = history.ring
        step(draw, history)
        check(history)
        check_versions(before, history)
    return history


def step(draw: Callable[[st.SearchStrategy[Any]], Any], history: History) -> None:
    ring, now, counts = history.ring, history.now, history.counts
    kinds = ["advance", "advance", "record", "record", "fill", "fill"]
    kind = draw(st.sampled_from([*kinds, "rotate", "reconfigure", "lose", "clear"]))
    if kind == "advance":
        jump = draw(jumps)
        history.now = now = max(0, now + (abs(jump) if history.is_forward else jump))
        run = draw(runs)
        advanced = ring.advance(now, counts, run)
        assert advanced.advance(now, counts, run) is advanced
        history.took(advanced)
    elif kind == "record":
        history.took(ring.advance(now, counts))
        written = {layer.generation for layer in history.ring.written}
        history.recorded[now] = history.recorded.get(now, set()) | written
    elif kind == "fill":
        fill(history, draw(st.sampled_from([0.5, 1.0])))
        grown = ring.grow(now, counts)
        check_growth(ring, grown, now, counts)
        history.took(grown)
    elif kind == "rotate":
        history.took(ring.rotate(now, counts))
    elif kind == "clear":
        history.took(ring.cleared(now))
    elif kind == "lose":
        lost = draw(st.sets(st.sampled_from([layer.name for layer in ring.layers])))
        history.took(ring.without(lost))
        history.counts.update(dict.fromkeys(lost, 0))
        left = numbers(history.ring)
        history.is_in_order &= left == numbers(ring)[: len(left)]
        for took in history.recorded.values():
            took.intersection_update(left)
    else:
        reconfigure(history, draw(configs))


def fill(history: History, share: float) -> None:
    """Record as many URLs as the written layers take, or a share of them."""
    room = [
        math.ceil(share * layer.capacity) - history.counts[layer.name]
        for layer in history.ring.written
    ]
    for layer in history.ring.written:
        history.counts[layer.name] += max(0, min(room))


def reconfigure(history: History, config: Config) -> None:
    try:
        ring = history.ring.reconfigure(config, history.now)
    except ConfigurationError:
        return
    before = {layer.name: layer for layer in history.ring.layers}
    assert all(before[layer.name] == layer for layer in ring.layers)
    assert ring.active.layers == history.ring.active.layers
    history.changes += ring is not history.ring
    history.took(ring)


def check(history: History) -> None:
    """Check what every ring promises."""
    ring = history.ring
    # One budget for each configuration, from one change to the next.
    budgets = {history.made_by[layer.name] for layer in ring.tested}
    assert ring.error_bound <= sum(config.error_rate for _, config in budgets) * (1 + 1e-9)
    own = [g for g in ring.generations if g.number >= ring.since]
    assert 1 <= len(own) <= len(ring.generations) <= MAX_GENERATIONS
    assert len(own) <= ring.config.slots or not ring.config.schedule
    assert numbers(ring) == sorted(set(numbers(ring)), reverse=True)
    assert len({layer.name for layer in ring.layers}) == len(ring.layers) <= 255
    assert len(ring.layers) - len(ring.generations) <= MAX_FURTHER_LAYERS
    assert all(layer.index < MAX_LAYERS for layer in ring.layers)
    assert all(layer.num_bits >= 1 for layer in ring.layers)
    assert all(8 * layer.memory <= MAX_LAYER_BITS for layer in ring.layers)
    assert all(8 * layer.memory <= MAX_GROWN_BITS for layer in ring.layers if layer.index)
    assert {layer.counting for layer in ring.layers} == {ring.header.counting}
    assert set(ring.written) | set(ring.tested) <= set(ring.layers)
    assert len(ring.runs) == len(set(ring.runs)) <= RUNS_KEPT
    assert ring_codec.parse(ring_codec.dump(ring)) == ring
    check_times(ring)
    check_due(history)


def check_versions(old: Ring, history: History) -> None:
    """Check that no page becomes new while nothing more is forgotten; so versions of sitemaps end.

    See ``SitemapVersions``.
    """
    before, after = (forgotten_before(ring.generations) for ring in (old, history.ring))
    assert after >= before
    if after == before:
        tested, left = ({layer.generation for layer in r.tested} for r in (old, history.ring))
        assert all(took & left for took in history.recorded.values() if took & tested)


def check_due(history: History) -> None:
    """Check that pages are due once all generations that took them are forgotten, and never early.

    Late, if a generation was opened in the same second, or was lost out of turn.
    """
    if not history.is_forward:
        return
    before = ledger.due_before(history.ring, history.now)
    left = {*numbers(history.ring.advance(history.now))}
    for time, took in history.recorded.items():
        is_forgotten = not took & left
        assert is_forgotten or time >= before
        assert time <= before or not (is_forgotten and history.is_in_order)


def check_times(ring: Ring) -> None:
    """Check that keys live for as long as what they hold is remembered, and not for ever."""
    plan_ = ring.config.schedule
    last = max(ring.expires(generation) for generation in ring.generations)
    assert ring.expiry == (last + RING_OUTLIVES_SECONDS if plan_ else 0)
    for generation in ring.generations:
        times = [function(generation) for function in (ring.closes, ring.forgotten, ring.expires)]
        if plan_ is None:
            assert times == [0, 0, 0]
        elif plan_.counts_runs:
            assert times == [0, 0, ring.changed + RUNS_EXPIRE_SECONDS]
        else:
            closes, forgotten, expires = times
            assert closes <= forgotten == expires - SLACK_SECONDS
            assert forgotten <= plan_.start(
                ring.period(generation) + ring.config.slots, *ring.shift
            )
    assert ring.ends == ring.closes(ring.active)


@examples(400)
@given(histories(), st.data())
def test_every_ring_keeps_its_promises(history: History, data: st.DataObject) -> None:
    """See ``check``, at every step; and each generation is forgotten when it is said.

    Whether the filter is used in all periods until then, or in some of them, or in none.
    """
    ring = history.ring.advance(history.now)  # a clock that went back moves what is in the future
    for generation in ring.generations:
        end = ring.forgotten(generation)
        if end <= history.now:  # for ever, or by runs
            continue
        after = ring
        uses = data.draw(st.lists(st.integers(history.now, end - 1), max_size=5))
        for now in [*sorted(uses), end - 1]:
            after = after.advance(now)
            assert generation.number in numbers(after)
        assert generation.number not in numbers(after.advance(end))


@examples(300)
@given(
    histories(forward=True),
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["shop", "news"])), max_size=40),
    st.data(),
)
def test_pages_of_a_chunk_of_the_ledger_are_forgotten_together(
    history: History, found: list[tuple[int, str]], data: st.DataObject
) -> None:
    """Whatever becomes of the ring later; and no request is lost, or in a chunk of another tag."""
    opened = [generation.opened for generation in history.ring.generations]
    around = {time + by for time in (*opened, *history.recorded) for by in (-1, 0, 1)}
    times = sorted(time for time in {*around, history.now} if time <= history.now)
    entries = [
        LedgerEntry(times[place % len(times)], tag, f"{number}")
        for number, (place, tag) in enumerate(found)
    ]
    chunks = ledger.chunks_of(history.ring, entries)
    by_request = {entry.request: entry for entry in entries}
    parts = [[by_request[text] for text in ledger.unpack(chunk.data)] for chunk in chunks]
    assert sorted(one.request for part in parts for one in part) == sorted(by_request)
    for _ in range(data.draw(st.integers(0, 6))):
        step(data.draw, history)
    before = ledger.due_before(history.ring, history.now)
    for chunk, part in zip(chunks, parts, strict=True):
        assert {entry.tag for entry in part} == {chunk.tag}
        assert max(entry.time for entry in part) == chunk.time
        if chunk.time != before:  # else a generation was opened in that second, after them
            assert {entry.time < before for entry in part} == {chunk.time < before}


def check_growth(old: Ring, new: Ring, now: int, counts: Counts) -> None:
    """Check that a ring changes only where that makes room, in the end if not at once."""
    full = full_layers(old, counts)
    if not full:
        assert new is old
        return
    if new is old:
        return
    if new.active.number > old.active.number:
        assert not full_layers(until_it_stays(new, now, counts), counts), "forgotten in vain"
    newest = old.period(old.active)
    ended = 0 < old.ends <= now
    current = {g.number for g in old.generations if old.period(g) >= newest and not ended}
    assert current <= set(numbers(new)), "what is of this period stays"
    if new.active.number == old.active.number:
        check_larger(old, new, full)


def test_where_all_are_written_and_full_nothing_is_forgotten_in_vain() -> None:
    ring, now = fresh(WRITE_ALL, growth=0, schedule=schedule(3 * DAY, DAY)), NOW
    for days in (1, 1, 1, 0, 0, 0):
        now += days * DAY
        ring = ring.advance(now, all_full(ring))
        check_growth(ring, ring.grow(now, all_full(ring)), now, all_full(ring))


def full_layers(ring: Ring, counts: Counts) -> list[Layer]:
    return [layer for layer in ring.written if counts.get(layer.name, 0) >= layer.capacity]


def until_it_stays(ring: Ring, now: int, counts: Counts) -> Ring:
    """Return the ring that is left when there is room, or none can be made."""
    for _ in range(1_000):
        ring, before = ring.grow(now, counts), ring
        if ring is before:
            return ring
    raise AssertionError("it never ends")


def check_larger(old: Ring, new: Ring, full: list[Layer]) -> None:
    config = old.config
    assert config.growth
    assert [g.number for g in new.generations] == numbers(old)
    assert len(new.layers) == len(old.layers) + 1
    for before, after in zip(old.generations, new.generations, strict=True):
        if after == before:
            continue
        assert before.layers[-1] in full
        assert after.layers[:-1] == before.layers
        last, added = after.layers[-2:]
        assert added.index == last.index + 1
        if last.index and 8 * added.memory < MAX_GROWN_BITS:
            assert added.capacity >= last.capacity * config.growth
    if config.max_memory is not None:
        base = plan(
            config.capacity,
            config.error_rate,
            tested=config.tested(old.header.order),
            blocks=old.header.blocks,
            num_hashes=len(old.header.seeds),
            counting=old.header.counting,
        )
        to_come = max(0, config.slots - len(new.generations))
        assert new.memory * old.header.blocks + to_come * base.memory <= config.max_memory


def test_a_ring_has_no_more_layers_than_a_byte_can_count() -> None:
    """Not even if it gets further generations when it has grown as far as it may."""
    ring = fresh(growth=1, capacity=10, schedule=schedule(8 * DAY, DAY))
    for day in range(8):
        ring = ring.advance(NOW + day * DAY)
        for _ in range(40):
            grown = ring.grow(NOW + day * DAY, all_full(ring))
            ring = grown if grown.active.number == ring.active.number else ring
    assert len(ring.layers) - len(ring.generations) == MAX_FURTHER_LAYERS
    ring = ring.reconfigure(
        replace(ring.config, schedule=schedule(MAX_GENERATIONS * DAY, DAY)), NOW
    )
    for _ in range(MAX_GENERATIONS - len(ring.generations)):
        ring = ring.rotate(NOW + 8 * DAY)
    assert len(ring.layers) == 255
    assert ring_codec.parse(ring_codec.dump(ring)) == ring
