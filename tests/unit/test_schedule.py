"""Spans and schedules: against a calendar walked by other means, and what users are told."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from dateutil.relativedelta import relativedelta
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.schedule import (
    HALF_MONTHS,
    MAX_GENERATIONS,
    MAX_YEARS,
    RUNS,
    SECONDS,
    Schedule,
    Span,
    parse_span,
    usual_period,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY, WEEK = 60, 3600, 86_400, 604_800
CENTURY = 36_525 * DAY
MOST = {HALF_MONTHS: 24 * MAX_YEARS, SECONDS: CENTURY, RUNS: 1_000_000}
RANGES = {
    HALF_MONTHS: "0.5 months to 100 years",
    SECONDS: "1 second to 100 years",
    RUNS: "1 to 1,000,000 runs",
}
NAME = "`window`"

spans = st.sampled_from([HALF_MONTHS, SECONDS, RUNS]).flatmap(
    lambda unit: st.builds(Span, st.integers(1, MOST[unit]), st.just(unit))
)
times = st.integers(0, 2**37) | st.integers(0, 2**32)


class Unprintable:
    def __repr__(self) -> str:
        raise OSError("no repr")


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


def months(window: int, period: int) -> Schedule:
    return Schedule(Span(2 * window, HALF_MONTHS), Span(2 * period, HALF_MONTHS))


def seconds(window: int, period: int) -> Schedule:
    return Schedule(Span(window, SECONDS), Span(period, SECONDS))


def unix(*fields: int) -> int:
    moment = datetime(*fields, tzinfo=UTC)  # type: ignore[misc, arg-type]
    return (moment - EPOCH) // timedelta(seconds=1)


def refusal(value: object) -> str:
    """Return the message that a bad span gives, without the part that all have."""
    with pytest.raises(ConfigurationError) as caught:
        parse_span(NAME, value)
    message = str(caught.value)
    head = (
        f'{NAME} is a length of time or a number of runs, such as "5 months", "6 weeks", '
        '"36 hours" or "2 runs"; got '
    )
    assert message.startswith(head)
    return message.removeprefix(head)


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


# --- spans


@pytest.mark.parametrize(
    ("value", "span"),
    [
        ("5 months", Span(10, HALF_MONTHS)),
        ("0.5 months", Span(1, HALF_MONTHS)),
        ("1.5 years", Span(36, HALF_MONTHS)),
        ("2y", Span(48, HALF_MONTHS)),
        ("2 yr", Span(48, HALF_MONTHS)),
        ("100 years", Span(2400, HALF_MONTHS)),
        ("1w", Span(WEEK, SECONDS)),
        ("1.5 days", Span(36 * HOUR, SECONDS)),
        ("0.1 min", Span(6, SECONDS)),
        ("  36   HOURS ", Span(36 * HOUR, SECONDS)),
        ("1 minute", Span(60, SECONDS)),
        ("1_000 s", Span(1000, SECONDS)),
        ("7 sec", Span(7, SECONDS)),
        (90.0, Span(90, SECONDS)),
        ("0090 s", Span(90, SECONDS)),
        ("1run", Span(1, RUNS)),
        ("1_000_000 runs", Span(1_000_000, RUNS)),
        (CENTURY, Span(CENTURY, SECONDS)),
        (timedelta(milliseconds=2000), Span(2, SECONDS)),
        (Span(7, RUNS), Span(7, RUNS)),
    ],
)
def test_what_is_a_span(value: object, span: Span) -> None:
    assert parse_span(NAME, value) == span


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (Span(10, HALF_MONTHS), "5 months"),
        (Span(1, HALF_MONTHS), "0.5 months"),
        (Span(24, HALF_MONTHS), "1 year"),
        (Span(36, HALF_MONTHS), "18 months"),
        (Span(48, HALF_MONTHS), "2 years"),
        (Span(7 * DAY, SECONDS), "1 week"),
        (Span(8 * DAY, SECONDS), "8 days"),
        (Span(90 * MINUTE, SECONDS), "90 minutes"),
        (Span(1, SECONDS), "1 second"),
        (Span(12, RUNS), "12 runs"),
        (Span(CENTURY, SECONDS), "36525 days"),
    ],
)
def test_how_a_span_is_written(span: Span, text: str) -> None:
    assert str(span) == text


@given(spans)
def test_the_text_of_a_span_is_read_back(span: Span) -> None:
    assert parse_span(NAME, str(span)) == span
    assert parse_span(NAME, str(span).replace(" ", "").upper()) == span


@given(
    st.decimals(0, 10**6, places=3),
    st.sampled_from([("s", 1), ("min", MINUTE), ("h", HOUR), ("days", DAY), ("week", WEEK)]),
)
@example(Decimal("0.1"), ("min", MINUTE))
def test_fractions_are_exact(number: Decimal, unit: tuple[str, int]) -> None:
    exact = Fraction(number) * unit[1]
    if exact.denominator == 1 and 1 <= exact <= CENTURY:
        assert parse_span(NAME, f"{number} {unit[0]}") == Span(int(exact), SECONDS)
    else:
        refusal(f"{number} {unit[0]}")


@pytest.mark.parametrize("text", ["5m", "5 M", "5 mo", "1.5 m"])
def test_m_is_refused_because_it_may_mean_two_things(text: str) -> None:
    assert refusal(text).startswith(f"{text!r}: does ")
    assert "mean minutes or months?" in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "month", "m", "five months", "5 fortnights", "-5 days", "+5 days", "5 days ago"),
        *("1e6", "nan", "inf", "1.", ".5 days", "1,5 days", "_1 s", "1_ s", "1__0 s", "1 000 s"),
        *("5\n5", "5 days\0", "٣ days", "³ s", "0x10", "None", "9" * 41, "9" * 5000 + " runs"),
        *("1" + " " * 100 + "x", "P5M", "5 months 2 days"),
    ],
)
def test_text_that_is_no_number_with_a_unit(text: str) -> None:
    message = refusal(text)
    assert message.startswith(f"{text!r:.100}: it should be a number in digits and then ")
    units = '"years", "months", "weeks", "days", "hours", "minutes", "seconds" or "runs"'
    assert message.endswith(units)


@pytest.mark.parametrize(
    "value",
    [0.5, 1.5, float("nan"), float("inf"), -float("inf"), timedelta(seconds=5, microseconds=1)],
)
def test_a_number_is_whole_seconds(value: object) -> None:
    assert refusal(value) == f"{value!r}: it should come to whole seconds"


@pytest.mark.parametrize("text", ["2", " 90 ", "3600", "1_0", "0", "9" * 40])
def test_text_without_a_unit_is_refused_with_the_units(text: str) -> None:
    """Months may be meant, and everything would be forgotten after seconds."""
    number = text.strip()
    assert refusal(text) == (
        f'{text!r}: it has no unit: write "{number} months", "{number} days" or "{number} '
        'seconds", whichever is meant'
    )


@pytest.mark.parametrize("number", [1, 2, 59, 30.0])
def test_a_number_alone_comes_to_a_minute(number: float) -> None:
    assert f'it would be seconds: write "{number:g} months"' in refusal(number)
    assert parse_span(NAME, timedelta(seconds=number)) == Span(int(number), SECONDS)


@pytest.mark.parametrize(
    ("new", "old", "earlier"),
    [
        (("6 months", None), ("6 months", None), False),
        (("5 months", None), ("6 months", None), True),
        (("5 months", None), None, True),
        # Up to 3 months after it was seen, and not 5 at least.
        (("6 months", "3 months"), ("6 months", "1 month"), True),
        (("6 months", "1 month"), ("6 months", "3 months"), False),
        (("60 days", "30 days"), ("2 months", None), True),
        (("62 days", "31 days"), ("2 months", None), False),
        (("3 runs", None), ("2 runs", None), False),
        (("2 runs", None), ("3 runs", None), True),
        (("64 runs", None), ("1 day", None), True),
        (("1 year", None), ("1 run", None), True),
    ],
)
def test_which_schedules_forget_earlier(
    new: tuple[str, str | None], old: tuple[str, str | None] | None, earlier: bool
) -> None:
    def schedule(window: str, period: str | None) -> Schedule:
        every = None if period is None else parse_span("p", period)
        return Schedule.of(parse_span("w", window), every)

    assert schedule(*new).forgets_earlier(old and schedule(*old)) is earlier


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        *((value, SECONDS) for value in (0, -1, -0.0, 1e300, CENTURY + 1, "0 days", 2**70)),
        *((value, SECONDS) for value in ("9" * 40 + "s", timedelta(0), timedelta.max)),
        *((value, HALF_MONTHS) for value in ("0 months", "1201 months")),
        *((value, RUNS) for value in ("0 runs", "1000001 runs")),
    ],
)
def test_a_span_is_neither_nothing_nor_absurd(value: object, unit: str) -> None:
    assert refusal(value) == f"{value!r}: it has to come to {RANGES[unit]}"


def test_a_value_that_cannot_be_shown_is_refused_all_the_same() -> None:
    assert refusal(Unprintable()).startswith("something of type Unprintable: ")
    assert refusal(10**5000).startswith("something of type int: ")
    assert len(refusal(["x" * 10**6])) < 200


anything = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.binary(), st.complex_numbers(), st.decimals()),
        *(st.integers(), st.floats(), st.text(), st.timedeltas(), st.datetimes(), st.fractions()),
        *(st.builds(object), st.builds(Unprintable), spans),
        st.from_regex(r"\s*-?[0-9_.]{1,6} ?[a-zA-Z]{0,7}", fullmatch=True),
        st.builds(
            "{}{}".format,
            st.decimals(-1, 10**9) | st.integers(),
            st.sampled_from(["s", "m", "mo", "min", "h", "d", "w", "months", "years", "runs", "x"]),
        ),
    ),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=3,
)


@given(anything)
def test_any_value_is_a_span_or_a_configuration_error(value: object) -> None:
    try:
        span = parse_span("`some`", value)
    except ConfigurationError as error:
        assert str(error).startswith("`some` is ")  # noqa: PT017 - either is right
    else:
        assert 1 <= span.count <= MOST[span.unit]
        assert parse_span("`some`", span) is span


# --- which windows and periods go together


@pytest.mark.parametrize(
    ("window", "period"),
    [
        ("5 months", "1 month"),
        ("1 month", "0.5 months"),
        ("60 days", "30 days"),
        ("1 day", "12 hours"),
        ("7 s", "7 s"),
        ("7 runs", "1 run"),
    ],
)
def test_default_periods(window: str, period: str) -> None:
    schedule = Schedule.of(parse_span(NAME, window))
    assert schedule == Schedule(parse_span(NAME, window), parse_span(NAME, period))
    assert str(schedule) == f"{window} (rotated every {period})".replace(" s", " seconds")


@pytest.mark.parametrize(
    ("window", "period", "periods"),
    [
        ("5 months", "4 weeks", '"5 months" or "1 month"'),
        ("3 runs", "1 day", '"3 runs" or "1 run"'),
        ("1 week", "5 hours", '"6 hours", "4 hours" or "7 hours"'),
        ("10 years", None, '"2 months", "3 months" or "4 months"'),
        ("67 runs", None, '"67 runs"'),
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


@pytest.mark.parametrize(
    ("period", "moment", "start", "end"),
    [
        (1, (2028, 2, 29, 12), (2028, 2, 1), (2028, 3, 1)),
        (1, (2026, 12, 31, 23, 59, 59), (2026, 12, 1), (2027, 1, 1)),
        (1, (1970, 1, 1), (1970, 1, 1), (1970, 2, 1)),
        (6, (2026, 6, 30, 23, 59, 59), (2026, 1, 1), (2026, 7, 1)),
        (6, (2026, 7, 1), (2026, 7, 1), (2027, 1, 1)),
        (5, (1971, 1, 1), (1970, 11, 1), (1971, 4, 1)),
        (1200, (2026, 1, 1), (1970, 1, 1), (2070, 1, 1)),
    ],
)
def test_periods_in_months(
    period: int, moment: tuple[int, ...], start: tuple[int, ...], end: tuple[int, ...]
) -> None:
    schedule = months(period, period)
    index = schedule.index(unix(*moment))
    assert schedule.start(index) == unix(*start)
    assert schedule.start(index + 1) == unix(*end)


@given(spans.filter(lambda span: span.unit == SECONDS and span.count % 2 == 0), times)
def test_a_length_of_time_lasts_half_of_it_at_least(window: Span, time: int) -> None:
    schedule = Schedule.of(window)
    forgotten = schedule.start(schedule.index(time) + schedule.generations)
    assert window.count // 2 < forgotten - time <= window.count


@given(schedules(), times)
@example(Schedule.of(Span(2, HALF_MONTHS)), unix(2028, 2, 29))
@example(months(5, 1), unix(2028, 2, 29))
@example(months(12, 12), 2**37)
@example(months(1200, 1200), 2**37)
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
@example(months(1, 1), 0, (1, 2))
@example(months(1200, 1200), 0, (16_383, 16_384))
@example(months(1200, 1200), 2**37, (16_383, 16_384))
@example(seconds(1, 1), 0, (3, 7))
def test_every_time_lies_in_its_period(
    schedule: Schedule, time: int, shift: tuple[int, int]
) -> None:
    index = schedule.index(time, *shift)
    assert schedule.start(index, *shift) <= time < schedule.start(index + 1, *shift)
    assert index in {schedule.index(time), schedule.index(time) - 1}


@given(schedules(), times, shifts())
def test_a_part_begins_later_by_its_share_of_the_period(
    schedule: Schedule, time: int, shift: tuple[int, int]
) -> None:
    part, parts = shift
    index = schedule.index(time)
    start, end = schedule.start(index), schedule.start(index + 1)
    late = Fraction(schedule.start(index, part, parts) - start)
    assert 0 <= Fraction((end - start) * part, parts) - late < 1
    assert start <= schedule.start(index, part, parts) < end


@given(schedules(), times, shifts())
def test_a_url_is_forgotten_after_the_window_at_most(
    schedule: Schedule, time: int, shift: tuple[int, int]
) -> None:
    """Measured in boundaries: months and shifts are not all equally long."""
    index = schedule.index(time, *shift)
    forgotten = schedule.start(index + schedule.generations, *shift)
    assert schedule.index(forgotten, *shift) - index == schedule.generations
    if schedule.period.unit == SECONDS:
        window, period = schedule.window.count, schedule.period.count
        assert window - period < forgotten - time <= window


def test_runs_have_no_times() -> None:
    schedule = Schedule.of(Span(3, RUNS))
    with pytest.raises(ValueError, match="begins at no known time"):
        schedule.index(0)
    with pytest.raises(ValueError, match="begins at no known time"):
        schedule.start(0)


@pytest.mark.parametrize(
    ("window", "period", "age"),
    [
        ("2 months", "1 month", "1 to 2 months later"),
        ("1 year", "1 month", "11 months to 1 year later"),
        ("2 days", "12 hours", "36 hours to 2 days later"),
        ("1 month", "1 month", "at most 1 month later"),
        ("3 runs", "1 run", "3 runs later"),
        ("4 runs", "2 runs", "3 to 4 runs later"),
    ],
)
def test_when_a_url_is_new_again_in_words(window: str, period: str, age: str) -> None:
    assert Schedule(parse_span("w", window), parse_span("p", period)).age == age
