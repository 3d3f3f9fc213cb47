"""Schedules: against a calendar walked by other means, and what users are told."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from dateutil.relativedelta import relativedelta
from hypothesis import example, given
from hypothesis import strategies as st
from support.strategies import MOST, spans

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.schedule import (
    HALF_MONTHS,
    MAX_GENERATIONS,
    RUNS,
    SECONDS,
    Schedule,
    Span,
    parse_span,
    usual_period,
)

NAME = "`window`"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEAP_DAY = int(datetime(2028, 2, 29, tzinfo=UTC).timestamp())
times = st.integers(0, 2**37) | st.integers(0, 2**32)


@st.composite
def schedules(draw: st.DrawFn, units: tuple[str, ...] = (HALF_MONTHS, SECONDS)) -> Schedule:
    unit = draw(st.sampled_from(units))
    generations = draw(st.integers(1, MAX_GENERATIONS))
    period = draw(st.integers(1, MOST[unit] // generations))
    return Schedule(Span(period * generations, unit), Span(period, unit))


@st.composite
def shifts(draw: st.DrawFn) -> tuple[int, int]:
    parts = draw(st.integers(1, 16_384))
    return draw(st.integers(0, parts - 1)), parts


def schedule_of(window: str, period: str | None = None) -> Schedule:
    return Schedule.of(parse_span("w", window), parse_span("p", period) if period else None)


def advice(window: Span, period: Span | None) -> tuple[str, list[Span]]:
    """Return a message about a bad schedule, and the periods that it suggests."""
    with pytest.raises(ConfigurationError) as caught:
        Schedule.of(window, period)
    message = str(caught.value)
    shown = period or usual_period(window)
    assert f'`window` = "{window}"' in message
    assert f'`period` = "{shown}"' in message
    told = message.split("set `period` to ")[1]
    return message, [parse_span("suggestion", text) for text in re.findall(r'"([^"]+)"', told)]


# --- which forget earlier


@pytest.mark.parametrize(
    ("new", "old", "earlier"),
    [
        (("6 months", None), ("6 months", None), False),
        (("5 months", None), ("6 months", None), True),
        # Up to 3 months after it was seen, and not 5 at least.
        (("6 months", "3 months"), ("6 months", "1 month"), True),
        (("6 months", "1 month"), ("6 months", "3 months"), False),
        (("60 days", "30 days"), ("2 months", None), True),
        (("62 days", "31 days"), ("2 months", None), False),
        (("2 runs", None), ("3 runs", None), True),
        (("64 runs", None), ("1 day", None), True),
    ],
)
def test_which_schedules_forget_earlier(
    new: tuple[str, str | None], old: tuple[str, str | None], earlier: bool
) -> None:
    assert schedule_of(*new).forgets_earlier(schedule_of(*old)) is earlier


# --- which windows and periods go together


@pytest.mark.parametrize(
    ("window", "period"),
    [("5 months", "1 month"), ("60 days", "30 days"), ("7 s", "7 s"), ("7 runs", "1 run")],
)
def test_default_periods(window: str, period: str) -> None:
    schedule = schedule_of(window)
    assert schedule == schedule_of(window, period)
    assert str(schedule) == f"{window} (rotated every {period})".replace(" s", " seconds")


@pytest.mark.parametrize(
    ("window", "period", "periods"),
    [
        ("5 months", "4 weeks", '"5 months" or "1 month"'),
        ("1 week", "5 hours", '"6 hours", "4 hours" or "7 hours"'),
        ("10 years", None, '"2 months", "3 months" or "4 months"'),
    ],
)
def test_what_does_not_go_together_and_what_would(
    window: str, period: str | None, periods: str
) -> None:
    message, _ = advice(parse_span(NAME, window), parse_span(NAME, period) if period else None)
    rule = "the window is a multiple of the period, up to 64 times, in the same unit"
    assert message.endswith(f"{rule}; set `period` to {periods}")


@given(spans, st.none() | spans)
@example(Span(2390, HALF_MONTHS), Span(798, HALF_MONTHS))
@example(Span(7919, SECONDS), Span(7907, SECONDS))
@example(Span(1_000_000, RUNS), Span(999_999, RUNS))
@example(Span(2, HALF_MONTHS), Span(1, SECONDS))
def test_every_suggestion_works(window: Span, period: Span | None) -> None:
    wanted = period or usual_period(window)
    fits = window.unit == wanted.unit and window.count % wanted.count == 0
    if fits and window.count // wanted.count <= MAX_GENERATIONS:
        assert Schedule.of(window, period).period == wanted
        return
    _, periods = advice(window, period)
    assert periods
    for other in periods:
        assert Schedule.of(window, other).generations <= MAX_GENERATIONS


# --- periods


@given(schedules(), times)
@example(schedule_of("1 month"), LEAP_DAY)
@example(schedule_of("5 months", "1 month"), LEAP_DAY)
@example(schedule_of("100 years", "100 years"), 2**37)
def test_periods_agree_with_another_calendar(schedule: Schedule, time: int) -> None:
    """Walking from 1970 by relativedelta, from the number of the period that was returned."""

    def begin(number: int) -> datetime:
        count = number * schedule.period.count
        if schedule.period.unit == SECONDS:
            return EPOCH + timedelta(0, count)
        moment: datetime = EPOCH + relativedelta(months=count // 2)
        return moment + timedelta(days=15 * (count % 2))

    index = schedule.index(time)
    for number in (index, index + 1, index + schedule.generations):
        assert EPOCH + timedelta(seconds=schedule.start(number)) == begin(number)
    assert begin(index) <= EPOCH + timedelta(seconds=time) < begin(index + 1)


@given(schedules(), times, shifts())
@example(schedule_of("1 month", "1 month"), 0, (1, 2))
@example(schedule_of("100 years", "100 years"), 0, (16_383, 16_384))
@example(schedule_of("100 years", "100 years"), 2**37, (16_383, 16_384))
@example(schedule_of("1 s"), 0, (3, 7))
def test_every_time_lies_in_its_period(
    schedule: Schedule, time: int, shift: tuple[int, int]
) -> None:
    index = schedule.index(time, *shift)
    assert schedule.start(index, *shift) <= time < schedule.start(index + 1, *shift)
    assert index in {schedule.index(time), schedule.index(time) - 1}


def test_when_a_url_is_new_again_in_words() -> None:
    assert schedule_of("2 days", "12 hours").age == "36 hours to 2 days later"
    assert schedule_of("1 month", "1 month").age == "at most 1 month later"
    assert schedule_of("3 runs", "1 run").age == "3 runs later"
    assert schedule_of("4 runs", "2 runs").age == "3 to 4 runs later"


def test_runs_have_no_times() -> None:
    with pytest.raises(ValueError, match="begins at no known time"):
        schedule_of("3 runs").start(0)
