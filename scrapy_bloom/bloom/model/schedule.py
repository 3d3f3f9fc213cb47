"""When URLs are forgotten: spans of time or runs, and the calendar of a ring of generations.

Words: a *window* is how long a URL is remembered at most. The ring rotates every *period*, and has
``G = window / period`` generations. A URL first seen in period ``p`` is forgotten at the start of
period ``p + G``, so it is new again between ``window - period`` and ``window`` after it was seen.

Pure arithmetic: no clock, no I/O. Times are Unix times in seconds; boundaries are in UTC.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from operator import index
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError, shown

#: Months are counted by their halves, which begin on the 1st and on the 16th.
HALF_MONTHS, SECONDS, RUNS = "half-months", "seconds", "runs"
#: A window that remembers for ever, where None is "as stored".
NEVER = "never"
#: Generations of a ring at most; a lookup may have to look into every one.
MAX_GENERATIONS = 64
#: Unix times at most, the year 6325: spans that follow it end within the calendar of Python.
MAX_TIME = 1 << 37
#: Years of the longest span.
MAX_YEARS = 100

_DAY = 86_400
#: The day on which the second half of a month begins.
_MID_MONTH = 16
#: Day number of 1970-01-01.
_EPOCH = date(1970, 1, 1).toordinal()
#: The largest count of each unit, and all counts in words; a year of seconds has 365.25 days.
_MOST = {HALF_MONTHS: MAX_YEARS * 24, SECONDS: MAX_YEARS * 1461 * _DAY // 4, RUNS: 1_000_000}
_RANGES = {
    HALF_MONTHS: f"0.5 months to {MAX_YEARS} years",
    SECONDS: f"1 second to {MAX_YEARS} years",
    RUNS: f"1 to {_MOST[RUNS]:,} runs",
}
#: Name, unit, size in that unit and short forms, from long to short.
_WORDS: tuple[tuple[str, str, int, tuple[str, ...]], ...] = (
    ("year", HALF_MONTHS, 24, ("y", "yr")),
    ("month", HALF_MONTHS, 2, ()),
    ("week", SECONDS, 7 * _DAY, ("w",)),
    ("day", SECONDS, _DAY, ("d",)),
    ("hour", SECONDS, 3600, ("h",)),
    ("minute", SECONDS, 60, ("min",)),
    ("second", SECONDS, 1, ("s", "sec")),
    ("run", RUNS, 1, ()),
)
_SPELLINGS = {
    spelling: (unit, size)
    for name, unit, size, short in _WORDS
    for spelling in (name, f"{name}s", *short)
}
_TEXT = re.compile(r"(\d+(?:_\d+)*(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
#: The least of a number without a unit, which is seconds: fewer are likely to be other units.
_LEAST_BARE = 60
#: Seconds of half a month, on average, to compare schedules.
_HALF_MONTH_SECONDS = 1461 * _DAY // 96
#: Characters of a number in text; more is a mistake, and Python refuses to read 4,300 digits.
_MAX_DIGITS = 40


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time, or a number of runs of a spider.

    Args:
        count: how many of the unit, at least 1; at most 100 years or 1,000,000 runs.
        unit: ``HALF_MONTHS`` (of the calendar), ``SECONDS`` or ``RUNS``.

    Raises:
        ConfigurationError: the count is out of range, or the unit is none of these.
    """

    count: int
    unit: str

    def __post_init__(self) -> None:
        if self.unit not in _MOST:
            raise ConfigurationError(f"the unit is {_any_of([*_MOST])}")
        if type(self.count) is not int or not 1 <= self.count <= _MOST[self.unit]:
            raise ConfigurationError(f"it has to come to {_RANGES[self.unit]}")

    def __str__(self) -> str:
        """Text that ``parse_span`` reads back, in the longest unit that fits: ``1 year``."""
        if self.unit == HALF_MONTHS and self.count % 2:
            return f"{self.count / 2} months"
        number, name = next(
            (self.count // size, name)
            for name, unit, size, _ in _WORDS
            if unit == self.unit and self.count % size == 0
        )
        return f"{number} {name}" if number == 1 else f"{number} {name}s"


def parse_span(name: str, value: object) -> Span:
    """Parse a span.

    Args:
        name: the setting or parameter, for the error.
        value: text such as ``"5 months"``, ``"36h"`` or ``"2 runs"``; a ``timedelta`` of whole
            seconds; a ``Span``; a number of whole seconds that come to a minute at least.

    Raises:
        ConfigurationError: it is none of these, has a fraction that does not come to whole seconds,
            or is not from 1 second to 100 years or from 1 to 1,000,000 runs. Text has a unit:
            a number alone would be seconds where months were meant.
    """
    try:
        return _convert(value)
    except ConfigurationError as error:
        raise ConfigurationError(
            f'{name} is a length of time or a number of runs, such as "5 months", "6 weeks", '
            f'"36 hours" or "2 runs"; got {shown(value)}: {error}'
        ) from None


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a ring of generations rotates, and how long it remembers.

    Args:
        window: how long a URL is remembered at most.
        period: time or runs between two rotations; the window is 1 to 64
            times as long, in the same unit.

    Raises:
        ConfigurationError: the units differ, the window is no multiple of the period, or it is more
            than 64 times as long.
    """

    window: Span
    period: Span

    def __post_init__(self) -> None:
        times, rest = divmod(self.window.count, self.period.count)
        if self.window.unit != self.period.unit or rest or times > MAX_GENERATIONS:
            fitting = _periods(self.window, self.period)
            raise ConfigurationError(
                f'`window` = "{self.window}" does not go together with `period` = "{self.period}": '
                "the window is a multiple of the period, up to "
                f"{MAX_GENERATIONS} times, in the same unit; set `period` to {_any_of(fitting[:3])}"
            )

    @classmethod
    def of(cls, window: Span, period: Span | None = None) -> "Schedule":
        """Make a schedule; without a period, with the usual one."""
        return cls(window, period or usual_period(window))

    @property
    def generations(self) -> int:
        """Generations of the ring, 1 to 64."""
        return self.window.count // self.period.count

    @property
    def counts_runs(self) -> bool:
        """Whether the ring rotates with the runs of a spider, not with time."""
        return self.period.unit == RUNS

    def index(self, time: int, part: int = 0, parts: int = 1) -> int:
        """Return the number of the period that contains a time.

        Args:
            time: Unix time in seconds, 0 to ``MAX_TIME``.
            part: which of the parts of the ring, 0 <= part < parts; each rotates at its own time.
            parts: number of parts, at least 1.

        Raises:
            ValueError: the schedule counts runs.
        """
        if self.period.unit == HALF_MONTHS:
            day = date.fromordinal(_EPOCH + time // _DAY)
            time_in_unit = (day.year - 1970) * 24 + (day.month - 1) * 2 + (day.day >= _MID_MONTH)
        else:
            time_in_unit = time
        index = time_in_unit // self.period.count
        return index if self.start(index, part, parts) <= time else index - 1

    def start(self, index: int, part: int = 0, parts: int = 1) -> int:
        """Return the Unix time in seconds at which a period begins; undoes ``index``.

        Periods in months begin on the 1st or the 16th at 00:00 UTC, where the number of half
        months since 1970 is a multiple of the period's; periods in seconds at multiples of it. A
        part begins later, by ``part / parts`` of the period.

        Raises:
            ValueError: the schedule counts runs.
        """
        start, end = (self._boundary(number) for number in (index, index + 1))
        return start + (end - start) * part // parts

    def forgets_earlier(self, other: "Schedule | None") -> bool:
        """Whether URLs may be new again earlier than under another schedule; None never forgets.

        How long runs last is not known, so a schedule in runs and one of time both may.
        """
        if self == other:
            return False
        if other is None or self.counts_runs != other.counts_runs:
            return True
        return any(age < others for age, others in zip(self.ages, other.ages, strict=True))

    @property
    def ages(self) -> tuple[int, int]:
        """When a URL is new again after it was seen: between these average seconds, or runs."""
        unit = _HALF_MONTH_SECONDS if self.period.unit == HALF_MONTHS else 1
        return (self.window.count - self.period.count) * unit, self.window.count * unit

    @property
    def age(self) -> str:
        """When a URL is new again after it was seen, in words: ``1 to 2 months later``."""
        window, earliest = self.window, self.window.count - self.period.count + self.counts_runs
        if earliest in (0, window.count):
            return f"{window} later" if earliest else f"at most {window} later"
        from_text, latest = str(Span(earliest, window.unit)), str(window)
        number, word = from_text.split()
        is_same = word.removesuffix("s") == latest.split()[1].removesuffix("s")
        return f"{number if is_same else from_text} to {latest} later"

    def __str__(self) -> str:
        return f"{self.window} (rotated every {self.period})"

    def _boundary(self, index: int) -> int:
        if self.counts_runs:
            raise ValueError(f"a period of {self.period} begins at no known time")
        if self.period.unit == SECONDS:
            return index * self.period.count
        months, half = divmod(index * self.period.count, 2)
        day = date(1970 + months // 12, 1 + months % 12, _MID_MONTH if half else 1)
        return (day.toordinal() - _EPOCH) * _DAY


def usual_period(window: Span) -> Span:
    """Return the period of a schedule that names none.

    That is a run, a month for windows of months, and half of any other window, so that a URL is
    remembered for half of it at least. What has no half is forgotten as a whole.
    """
    count, unit = window.count, window.unit
    if unit == RUNS:
        return Span(1, unit)
    if unit == HALF_MONTHS and count > 2:
        return Span(2 - count % 2, unit)
    return window if count % 2 else Span(count // 2, unit)


def plain(value: Any) -> Any:
    """Return an integer of another type, such as NumPy's, as an int; anything else as it is."""
    # Older versions of NumPy make integers of its truth values, with a warning.
    if type(value).__name__ not in ("bool", "bool_"):
        with suppress(TypeError):
            return index(value)
    return value


def _convert(value: object) -> Span:
    if isinstance(value, Span):
        return value
    if isinstance(value, str):
        return _read(value)
    number = value.total_seconds() if isinstance(value, timedelta) else plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ConfigurationError("it should be text, a number of seconds or a timedelta")
    # Neither infinity nor NaN is an integer.
    if isinstance(number, float) and not number.is_integer():
        raise ConfigurationError("it should come to whole seconds")
    if not isinstance(value, timedelta) and 0 < number < _LEAST_BARE:
        raise ConfigurationError(f"it would be seconds: {_write_unit(f'{int(number)}')}")
    return Span(int(number), SECONDS)


def _read(text: str) -> Span:
    match = _TEXT.fullmatch(text.strip().lower())
    number, word = match.groups() if match else ("", "")
    if word in ("m", "mo"):
        raise ConfigurationError(f'does "{word}" mean minutes or months? Write the whole word')
    if 1 <= len(number) <= _MAX_DIGITS and not word:
        raise ConfigurationError(f"it has no unit: {_write_unit(number)}")
    if not 1 <= len(number) <= _MAX_DIGITS or word not in _SPELLINGS:
        words = _any_of([f"{name}s" for name, *_ in _WORDS])
        raise ConfigurationError(f"it should be a number in digits and then {words}")
    unit, size = _SPELLINGS[word]
    count = Fraction(number) * size
    if count.denominator > 1:
        raise ConfigurationError("it should come to whole seconds, half months or whole runs")
    return Span(int(count), unit)


def _write_unit(number: str) -> str:
    return f'write "{number} months", "{number} days" or "{number} seconds", whichever is meant'


def _periods(window: Span, wanted: Span) -> list[Span]:
    """Return periods that divide a window, the nearest to one that does not first."""
    numbers = [n for n in range(1, MAX_GENERATIONS + 1) if window.count % n == 0]
    periods = [Span(window.count // n, window.unit) for n in numbers]
    # No odd ones (9450 seconds).
    even = [period for period in periods if period == window or re.match(r"\d\d? ", str(period))]
    if window.unit != wanted.unit:
        return even
    return sorted(even, key=lambda period: abs(period.count - wanted.count))


def _any_of(items: Sequence[object]) -> str:
    """Quote and join: ``"a", "b" or "c"``."""
    *first, last = [f'"{item}"' for item in items]
    return f"{', '.join(first)} or {last}" if first else last
