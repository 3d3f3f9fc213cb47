"""Lengths of time and other numbers: what people write, how they are shown, what is refused."""

from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import spans

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, RUNS, SECONDS, Span, parse_span
from scrapy_bloom.bloom.validators import BYTES, COUNTS, SHARES, TIMES, read_number

RANGES = {
    HALF_MONTHS: "0.5 months to 100 years",
    SECONDS: "1 second to 100 years",
    RUNS: "1 to 1,000,000 runs",
}


MINUTE, HOUR, DAY, WEEK = 60, 3600, 86_400, 604_800
CENTURY = 36_525 * DAY
NAME = "`window`"


class Unprintable:
    def __repr__(self) -> str:
        raise OSError("no repr")


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


@pytest.mark.parametrize(
    ("value", "span"),
    [
        ("1.5 years", Span(36, HALF_MONTHS)),
        ("  36   HOURS ", Span(36 * HOUR, SECONDS)),
        ("0.1 min", Span(6, SECONDS)),
        (90.0, Span(90, SECONDS)),
        ("1run", Span(1, RUNS)),
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
        (Span(1, HALF_MONTHS), "0.5 months"),
        (Span(36, HALF_MONTHS), "18 months"),
        (Span(48, HALF_MONTHS), "2 years"),
        (Span(90 * MINUTE, SECONDS), "90 minutes"),
        (Span(1, SECONDS), "1 second"),
        (Span(12, RUNS), "12 runs"),
    ],
)
def test_how_a_span_is_written(span: Span, text: str) -> None:
    assert str(span) == text


@given(spans)
def test_the_text_of_a_span_is_read_back(span: Span) -> None:
    assert parse_span(NAME, str(span)) == span
    assert parse_span(NAME, str(span).replace(" ", "").upper()) == span


@pytest.mark.parametrize("text", ["5 M", "1.5 mo"])
def test_m_is_refused_because_it_may_mean_two_things(text: str) -> None:
    assert refusal(text).startswith(f"{text!r}: does ")
    assert "mean minutes or months?" in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "month", "five months", "5 fortnights", "-5 days", "5 days ago", "5 months 2 days"),
        *("1e6", "nan", "1.", ".5 days", "1,5 days", "1__0 s", "1 000 s"),
        *("5\n5", "5 days\0", "٣ days", "9" * 41, "9" * 5000 + " runs", "1" + " " * 100 + "x"),
    ],
)
def test_text_that_is_no_number_with_a_unit(text: str) -> None:
    message = refusal(text)
    assert message.startswith(f"{text!r:.100}: it should be a number in digits and then ")
    units = '"years", "months", "weeks", "days", "hours", "minutes", "seconds" or "runs"'
    assert message.endswith(units)


@pytest.mark.parametrize("value", [1.5, float("nan"), timedelta(seconds=5, microseconds=1)])
def test_a_number_is_whole_seconds(value: object) -> None:
    assert refusal(value) == f"{value!r}: it should come to whole seconds"


@pytest.mark.parametrize("text", [" 90 ", "1_0", "9" * 40])
def test_text_without_a_unit_is_refused_with_the_units(text: str) -> None:
    """Months may be meant, and everything would be forgotten after seconds."""
    number = text.strip()
    assert refusal(text) == (
        f'{text!r}: it has no unit: write "{number} months", "{number} days" or "{number} '
        'seconds", whichever is meant'
    )


@pytest.mark.parametrize("number", [1, 59, 30.0])
def test_a_number_alone_comes_to_a_minute(number: float) -> None:
    assert f'it would be seconds: write "{number:g} months"' in refusal(number)
    assert parse_span(NAME, timedelta(seconds=number)) == Span(int(number), SECONDS)


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        *((value, SECONDS) for value in (0, -1, 1e300, CENTURY + 1, "0 days", timedelta.max)),
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


# -- numbers with other units --


@given(st.integers(0, 10**9))
def test_thousands_may_be_apart(number: int) -> None:
    assert read_number(f"{number:,}", {}) == read_number(f"{number:_}", {}) == number


@given(st.integers(0, 10**6), st.integers(0, 999))
def test_a_fraction_is_exact_too(whole: int, thousandths: int) -> None:
    expected = 1_000 * whole + thousandths
    assert read_number(f"{whole}.{thousandths:03}k", COUNTS) == expected
    assert read_number(f"{whole}.{thousandths:03}%", SHARES) == float(Fraction(expected, 100_000))


def test_memory_is_in_thousands_or_in_powers_of_two_and_times_in_seconds() -> None:
    sizes = {"1kB": 1000, "1KiB": 1024, "2G": 2 * 10**9, "2GiB": 2**31, "7B": 7}
    assert {text: read_number(text, BYTES) for text in sizes} == sizes
    times = {"500ms": 0.5, "2 s": 2, "1.5 minutes": 90, "1 hour": 3600}
    assert {text: read_number(text, TIMES) for text in times} == times


@pytest.mark.parametrize(
    "text", ["", "k", "1kk", "-1", "1e6k", "1.k", ".5", "1,5", "1,00,000", "1 2", "9" * 41, "٣"]
)
def test_anything_else_is_no_number(text: str) -> None:
    assert read_number(text, COUNTS) is None
