"""Lengths of time, and schedules against a calendar that is walked by other means."""

from datetime import UTC, datetime, timedelta

import pytest
from dateutil.relativedelta import relativedelta
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.schedule import (
    DAY,
    MAX_GENERATIONS,
    MAX_YEARS,
    Schedule,
    Span,
    may_evict,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEAP_DAY = int(datetime(2028, 2, 29, tzinfo=UTC).timestamp())
times = st.integers(0, 2**37) | st.integers(0, 2**32)
spans = st.builds(Span, st.integers(1, 24 * MAX_YEARS), st.just(True)) | st.builds(
    Span, st.integers(1, 366 * MAX_YEARS * DAY)
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    generations = draw(st.integers(1, MAX_GENERATIONS))
    in_months = draw(st.booleans())
    most = (24 if in_months else 366 * DAY) * MAX_YEARS
    period = draw(st.integers(1, most // generations))
    return Schedule(Span(period * generations, in_months), Span(period, in_months))


# -- lengths of time --


@pytest.mark.parametrize(
    ("value", "span", "text"),
    [
        ("5 months", Span(10, in_months=True), "5 months"),
        ("1 Month", Span(2, in_months=True), "1 month"),
        ("1 half-month", Span(1, in_months=True), "1 half-month"),
        ("18months", Span(36, in_months=True), "18 months"),
        ("24 months", Span(48, in_months=True), "2 years"),
        (" 36   HOURS ", Span(36 * 3600), "36 hours"),
        ("6 weeks", Span(42 * DAY), "6 weeks"),
        ("90 minutes", Span(5400), "90 minutes"),
        ("1 second", Span(1), "1 second"),
        (timedelta(days=2), Span(2 * DAY), "2 days"),
        (Span(7), Span(7), "7 seconds"),
    ],
)
def test_what_is_a_length_of_time(value: object, span: Span, text: str) -> None:
    assert Span.parse(value) == span
    assert str(span) == text


@given(spans)
def test_the_text_of_a_length_of_time_is_read_back(span: Span) -> None:
    assert Span.parse(str(span)) == span


def test_a_number_without_a_unit_is_an_error_that_shows_two_right_values() -> None:
    for value in ("2", 2):
        with pytest.raises(ConfigurationError, match=r'Do you mean "2 days" or "2 months"\?'):
            Span.parse(value)


@pytest.mark.parametrize(
    "value",
    [
        *("", "month", "five months", "5 fortnights", "-5 days", "5 m", "1.5 days", None, 1.5, []),
        *("0 days", "0 months", "101 years", "9999999999 days", "9" * 5000, timedelta(-1)),
    ],
)
def test_anything_else_is_an_error_that_names_it(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^A length of time is .*not .") as caught:
        Span.parse(value)
    assert f"{value!r:.60}" in str(caught.value)


@given(st.text() | st.from_regex(r"[0-9]{0,14} ?[a-z-]{0,9}s?"))
def test_any_text_is_a_length_of_time_or_an_error(text: str) -> None:
    try:
        span = Span.parse(text)
    except ConfigurationError:
        return
    assert Span.parse(str(span)) == span


# -- windows and periods --


@pytest.mark.parametrize(
    ("window", "period"),
    [
        ("1 month", "1 half-month"),
        ("2 months", "1 month"),
        ("5 months", "1 month"),
        ("1 year", "1 month"),
        ("5 years", "1 month"),
        ("64 months", "1 month"),
        ("10 years", "2 months"),
        ("100 years", "20 months"),
        ("2 days", "1 day"),
        ("60 days", "30 days"),
        ("7 seconds", "7 seconds"),
        ("1 half-month", "1 half-month"),
    ],
)
def test_default_periods(window: str, period: str) -> None:
    schedule = Schedule.of(window)
    assert schedule == Schedule.of(window, period)
    assert schedule.generations <= MAX_GENERATIONS
    assert str(schedule) == window


@given(spans)
def test_every_window_has_a_default_period(window: Span) -> None:
    schedule = Schedule.of(window)
    assert schedule.window == window
    assert 1 <= schedule.generations <= MAX_GENERATIONS


@pytest.mark.parametrize(
    ("window", "period"),
    [("5 months", "4 weeks"), ("1 week", "5 hours"), ("65 days", "1 day"), ("1 day", "2 days")],
)
def test_a_window_and_a_period_that_do_not_fit_are_an_error(window: str, period: str) -> None:
    with pytest.raises(ConfigurationError, match=r"`window` = .* isn't 1 to 64 times `period`"):
        Schedule.of(window, period)


def test_a_period_needs_a_window() -> None:
    with pytest.raises(ConfigurationError, match="`period` needs a `window`"):
        Schedule.of(None, "1 day")
    assert Schedule.of("never") == Schedule.of(None) == Schedule()
    assert (Schedule().bounds(7), Schedule().forgets(7), str(Schedule())) == ((0, 0), 0, "never")


@given(schedules() | st.just(Schedule()))
def test_the_text_of_a_schedule_is_read_back(schedule: Schedule) -> None:
    assert Schedule.parse(schedule.text) == schedule


# -- periods --


@given(schedules(), times)
@example(Schedule.of("1 month"), LEAP_DAY)
@example(Schedule.of("5 months"), LEAP_DAY)
@example(Schedule.of("100 years", "100 years"), 2**37)
@example(Schedule.of("1 month"), LEAP_DAY - 13 * DAY)
def test_periods_agree_with_another_calendar(schedule: Schedule, time: int) -> None:
    assert schedule.period is not None
    count, starts, ends = schedule.period.count, *schedule.bounds(time)
    assert starts <= time < ends
    if not schedule.period.in_months:
        assert (starts % count, ends) == (0, starts + count)
        return
    first, second = (EPOCH + timedelta(seconds=end) for end in (starts, ends))
    assert first.day == (1 if count % 2 == 0 else first.day)
    whole = relativedelta(months=count // 2)
    if count % 2 == 0:
        assert second == first + whole
    else:
        assert {first.day, second.day} == {1, 16}
        assert second == (first + whole).replace(day=16) + relativedelta(months=first.day == 16) + (
            timedelta(days=-15) if first.day == 16 else timedelta()
        )


@given(schedules(), times)
def test_a_period_is_forgotten_a_window_after_it_started(schedule: Schedule, time: int) -> None:
    starts, ends = schedule.bounds(time)
    forgotten = schedule.forgets(ends)
    assert schedule.bounds(forgotten)[0] == forgotten
    for _ in range(schedule.generations):
        assert starts < forgotten
        starts = schedule.bounds(starts)[1]
    assert starts == forgotten


@pytest.mark.parametrize(
    ("window", "least"),
    [("2 months", "1 month"), ("1 month", "1 half-month"), ("7 seconds", None), (None, None)],
)
def test_each_url_is_remembered_for_all_periods_but_one(
    window: str | None, least: str | None
) -> None:
    assert Schedule.of(window).least == (least and Span.parse(least))


@pytest.mark.parametrize("policy", ["lru", "lfu", "random", "ttl"])
def test_a_full_server_evicts_keys_by_its_policy_and_by_their_expiry(policy: str) -> None:
    forever, window = Schedule(), Schedule.of("1 day")
    for schedules, has_expiry in (([], False), ([forever], False), ([forever, window], True)):
        assert not may_evict("noeviction", schedules)
        assert not may_evict("", schedules)
        assert may_evict(f"allkeys-{policy}", schedules)
        assert may_evict(f"volatile-{policy}", schedules) is has_expiry
