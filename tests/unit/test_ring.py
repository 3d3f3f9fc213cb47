"""A ring's decisions: which bitmaps come, go, are read and are written. Pure."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scrapy_bloom.bloom.model.bitmap import SLACK_SECONDS, Bitmap
from scrapy_bloom.bloom.model.ring import Changes, Ring, View
from scrapy_bloom.bloom.model.schedule import DAY, Schedule
from scrapy_bloom.bloom.model.spec import Options, Spec

#: 28 November 2026, noon (UTC).
NOW = 1_795_867_200
NEVER = Schedule()
WINDOWS = ["never", "2 days", "3 weeks", "1 month", "2 months", "5 months", "6 months", "1 year"]
SPEC = Options(blocks=1, capacity=1000, seeds=(1, 2, 3)).create(NEVER)
WRITE_ALL = replace(SPEC, ring="write-all")


class Filter:
    """A ring with exact sets in the place of bitmaps, used by clients with any schedules."""

    def __init__(self, spec: Spec = SPEC) -> None:
        self.spec = spec
        self.ring = Ring("default", 0, spec.id, "", (), {})
        self.sets: dict[str, set[str]] = {}
        self.removed: list[Bitmap] = []

    def use(self, schedule: Schedule, now: int) -> View:
        """Do what a client does before a call; asking again changes nothing."""
        for bitmap in self.ring.bitmaps:  # keys expire by themselves
            if 0 < bitmap.key_expires <= now:
                self.sets.pop(bitmap.name, None)
        lost = [one.name for one in self.ring.bitmaps if one.name not in self.sets]
        self._apply(self.ring.changes(self.spec, schedule, now, lost), now)
        assert not any(self.ring.changes(self.spec, schedule, now))
        return self.ring.view(self.spec, schedule, now)

    def _apply(self, changes: Changes, now: int) -> None:
        gone, kept, come = changes
        for bitmap in gone:
            assert not 0 < now < bitmap.expires or bitmap.name not in self.sets
            self.sets.pop(bitmap.name, None)
        names = {bitmap.name: bitmap for bitmap in self.ring.bitmaps if bitmap not in gone}
        assert not names.keys() & {bitmap.name for bitmap in come}
        names |= {bitmap.name: bitmap for bitmap in (*kept, *come)}
        self.sets |= {bitmap.name: set() for bitmap in come}
        counts = {name: len(self.sets[name]) for name in names}
        self.ring = replace(self.ring, bitmaps=tuple(sorted(names.values())), counts=counts)

    def add(self, url: str, schedule: Schedule, now: int) -> bool:
        view = self.use(schedule, now)
        if any(url in self.sets[bitmap.name] for bitmap in view.tested):
            return False
        for bitmap in view.written:
            self.sets[bitmap.name].add(url)
        names = self.ring.counts.keys()
        self.ring = replace(self.ring, counts={name: len(self.sets[name]) for name in names})
        return True

    def has(self, url: str, schedule: Schedule, now: int) -> bool:
        view = self.use(schedule, now)
        return any(url in self.sets[bitmap.name] for bitmap in view.tested)


@pytest.mark.parametrize("spec", [SPEC, WRITE_ALL], ids=["write-newest", "write-all"])
@pytest.mark.parametrize("window", WINDOWS[1:])
@given(since=st.integers(0, 400 * DAY), steps=st.lists(st.integers(0, 90 * DAY), max_size=8))
def test_a_url_is_remembered_for_a_window_less_a_period_and_no_longer_than_a_window(
    spec: Spec, window: str, since: int, steps: list[int]
) -> None:
    schedule, bloom, seen = Schedule.of(window), Filter(spec), NOW + since
    assert bloom.add("u", schedule, seen)
    forgotten = schedule.forgets(schedule.bounds(seen)[1])
    opened, ends = schedule.bounds(seen)
    assert forgotten - (ends - opened) < seen + 366 * DAY * 2
    now = seen
    for step in [*steps, 0]:
        now += step
        assert bloom.has("u", schedule, now) == (now < forgotten)


@given(
    st.sampled_from(WINDOWS),
    st.sampled_from(WINDOWS),
    st.lists(st.tuples(st.integers(0, 60 * DAY), st.booleans()), min_size=1, max_size=6),
)
def test_runs_with_another_window_by_accident_change_nothing_for_the_next_run(
    usual: str, other: str, runs: list[tuple[int, bool]]
) -> None:
    """What a run finds is what it would find if the runs with the other window hadn't been.

    Without a window, the second of such runs may be the change to a window: then what has been
    forgotten by it is deleted (see "Not" in docs/guarantees.md).
    """
    assume(usual != "never" or sum(by_accident for _, by_accident in runs) < 2)
    bloom, alone, now = Filter(), Filter(), NOW
    own, accident = Schedule.of(usual), Schedule.of(other)
    recorded = set[str]()
    for number, (pause, by_accident) in enumerate([(0, False), *runs, (0, False)]):
        now += pause
        if by_accident:
            bloom.use(accident, now)
            continue
        for url in recorded:
            assert bloom.has(url, own, now) == alone.has(url, own, now), url
        assert bloom.add(f"u{number}", own, now)
        assert alone.add(f"u{number}", own, now)
        recorded.add(f"u{number}")


@pytest.mark.parametrize("window", WINDOWS[1:])
def test_a_filter_that_never_forgot_counts_as_seen_when_it_gets_a_window(window: str) -> None:
    bloom, schedule = Filter(), Schedule.of(window)
    bloom.add("u", NEVER, NOW)
    change = NOW + 500 * DAY
    forgotten = schedule.forgets(schedule.bounds(change)[1])
    assert bloom.has("u", schedule, change)
    assert bloom.has("u", schedule, forgotten - 1)
    assert not bloom.has("u", schedule, forgotten)
    assert bloom.sets  # its bitmap is deleted a day later, and not before
    bloom.use(schedule, forgotten + SLACK_SECONDS)
    assert not any("u" in urls for urls in bloom.sets.values())


@given(st.sampled_from(WINDOWS), st.sampled_from(WINDOWS), st.lists(st.integers(0, 9), max_size=20))
def test_two_clients_with_different_windows_come_to_rest(
    one: str, two: str, pauses: list[int]
) -> None:
    """At any time, neither wants to change what the other has just changed."""
    bloom, now = Filter(), NOW
    for pause in pauses:
        now += pause * 7 * DAY
        for window in (one, two, one):
            bloom.use(Schedule.of(window), now)
        assert not any(bloom.ring.changes(SPEC, Schedule.of(two), now))
        assert not any(bloom.ring.changes(SPEC, Schedule.of(one), now))


@given(st.lists(st.integers(-400 * DAY, 400 * DAY), max_size=8))
def test_a_clock_that_jumps_hides_nothing_for_longer_than_its_window(jumps: list[int]) -> None:
    bloom, schedule, now = Filter(), Schedule.of("2 months"), NOW
    bloom.add("u", schedule, now)
    for jump in jumps:
        bloom.use(schedule, NOW + jump)
    assert not bloom.has("u", schedule, NOW + 800 * DAY)


def test_a_full_bitmap_gets_a_larger_one_and_the_error_rates_stay_below_the_bound() -> None:
    schedule, ring = Schedule.of("2 months"), Filter()
    for number in range(20_000):
        ring.add(str(number), schedule, NOW)
    bitmaps = ring.ring.bitmaps
    assert [bitmap.number for bitmap in bitmaps] == list(range(len(bitmaps)))
    assert len(bitmaps) > 3
    assert all(b.capacity == pytest.approx(2 * a.capacity, rel=0.01) for a, b in pairwise(bitmaps))
    assert all(ring.ring.counts[one.name] == one.capacity for one in bitmaps[:-1])


def test_a_generation_is_as_large_as_the_oldest_one_that_is_remembered() -> None:
    """The last one may be that of a run that found little."""
    bloom, schedule = Filter(), Schedule.of("3 days", "1 day")
    for day, count in enumerate((3_000, 10)):
        for number in range(count):
            assert bloom.add(f"{day} {number}", schedule, NOW + day * DAY)
    (bitmap,) = bloom.use(schedule, NOW + 2 * DAY).written
    assert bitmap.capacity >= 3_000


def test_a_ring_is_looked_at_again_when_it_forgets_the_first_of_its_generations() -> None:
    bloom, schedule = Filter(), Schedule.of("6 months")
    bloom.use(Schedule.of("2 days"), NOW)
    (short,) = bloom.ring.bitmaps
    assert bloom.use(schedule, NOW).until == short.expires - SLACK_SECONDS
    assert short.expires - SLACK_SECONDS < schedule.bounds(NOW)[1]


def test_a_generation_of_a_longer_window_grows_and_keeps_its_expiry() -> None:
    """With "write-all", clients of other windows write to it, too."""
    bloom, long, short = Filter(WRITE_ALL), Schedule.of("5 months"), Schedule.of("1 month")
    for number in range(SPEC.capacity):
        bloom.add(str(number), long, NOW)
    (full,) = bloom.ring.bitmaps
    later = NOW + 75 * DAY
    assert bloom.has("0", short, later)
    grown = [bitmap for bitmap in bloom.ring.bitmaps if bitmap.generation == full.generation]
    assert [(bitmap.number, bitmap.expires) for bitmap in grown] == [
        (0, full.expires),
        (1, full.expires),
    ]


def test_a_lost_bitmap_is_replaced_and_another_filters_are_all_gone() -> None:
    bloom, schedule = Filter(), Schedule.of("2 months")
    view = bloom.use(schedule, NOW)
    (bitmap,) = view.written
    lost = bloom.ring.changes(SPEC, schedule, NOW, [bitmap.name])
    assert (lost.gone, [one.name for one in lost.come]) == ([bitmap], [bitmap.name])
    other = bloom.ring.changes(replace(SPEC, id="other"), schedule, NOW)
    assert other.gone == [bitmap]


FIELDS = {"id": "a", "v:default": "1", "default:0-0.0": "8 1 0 1", "n:default:0-0.0": "1"}


@pytest.mark.parametrize(
    "damage",
    [
        {"default:x": "8 1 0 1"},
        {"default:0-0.0": ""},
        {"default:0-0.0": "8 1 0 9"},
        {"default:0-0.0": "99999999999999 1 0 1"},
        {"default:0-0.0": "4294967304 1 0 1"},
        {"default:0-0.0": "0 1 0 1"},
        {"default:0-0.0": "8 0 0 1"},
        {"default:0-999999999999.0": "8 1 0 1"},
        {"n:default:0-0.0": "many"},
        {f"default:0-0.{number}": "8 1 0 1" for number in range(5_000)},
    ],
)
def test_damaged_fields_are_an_error(damage: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"damaged|larger than any"):
        Ring.parse("default", 0, {**FIELDS, **damage})


digits = st.from_regex(r"[0-9]{1,12}", fullmatch=True) | st.integers(0, 3).map(str)
names = st.builds("default:{}-{}.{}".format, digits, digits, digits)
texts = st.builds("{} {} {} {}".format, digits, digits, digits, st.sampled_from("14"))


@given(st.dictionaries(st.text() | names, st.text() | texts, max_size=4), st.sampled_from(WINDOWS))
def test_any_fields_make_a_ring_that_can_be_used_or_an_error(
    fields: dict[str, str], window: str
) -> None:
    try:
        ring = Ring.parse("default", 0, fields)
    except ValueError:
        return
    assert ring.count(ring.bitmaps) >= 0
    schedule = Schedule.of(window)
    assert ring.view(SPEC, schedule, NOW).until >= 0
    changes = ring.changes(SPEC, schedule, NOW)
    assert all(0 < bitmap.memory <= 512 << 20 for bitmap in changes.come)


def test_a_ring_reads_what_it_writes_in_any_order() -> None:
    bloom = Filter()
    for day in (0, 40, 80):
        bloom.add(f"u{day}", Schedule.of("6 months"), NOW + day * DAY)
    fields = dict(reversed([*bloom.ring.fields.items()]))
    other = {"run:1-2.0": "8 1 77 1", "w:default": "never", "s:shop": "1"}
    read = Ring.parse("default", 0, {"id": SPEC.id, **fields, **other})
    assert read == replace(bloom.ring, others_expire=77)
