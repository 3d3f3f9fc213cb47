"""The options of a filter: each declared once, and what a user asks of one filter. Pure.

An option is a parameter of ``BloomFilter``. Messages write its name in backticks, so that callers
with other names for it (settings) can replace them: ``errors.reword``.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.hashing import draw_seeds
from scrapy_bloom.bloom.model.header import WRITE_ALL, WRITE_NEWEST, Header
from scrapy_bloom.bloom.model.schedule import NEVER, RUNS, Schedule, Span, parse_span
from scrapy_bloom.bloom.model.sizing import MAX_BLOCKS, plan

#: What becomes of a stored configuration that differs from what the user asks for: it is replaced;
#: it is replaced unless URLs would be forgotten earlier, which is refused; it is kept.
REPLACE, EXTEND, KEEP = "replace", "extend", "keep"
#: The configuration of a new filter where the user gives none.
DEFAULTS = Config(capacity=1_000_000, error_rate=1e-5)


@dataclass(frozen=True, slots=True)
class Option:
    """How an option of a filter, or a setting of a crawl, is declared.

    Args:
        parse: returns the value; called with the name and what the user gave.
        help: what it is, in one line.
        default: what it is where it is unset, in Markdown; "" where ``value`` says it.
        value: the default; None of a filter, which has what is stored.
        stored: its name in a header, where it is fixed when the filter is created; "" where it may
            change later.
    """

    parse: Callable[[str, Any], Any]
    help: str
    default: str = ""
    value: Any = None
    stored: str = ""


def declare(
    value: Any,
    parse: Callable[[str, Any], Any],
    text: str,
    *,
    default: str = "",
    stored: str = "",
    secret: bool = False,
) -> Any:
    """Declare an option, whose name and type are the field's: see ``Option``."""
    factory = (lambda: dict(value)) if isinstance(value, dict) else (lambda: value)
    option = Option(parse, text, default, value, stored)
    return field(default_factory=factory, repr=not secret, metadata={"option": option})


def declared_in(options: type) -> dict[str, Option]:
    """Return the options that a dataclass declares, by their names."""
    return {own.name: own.metadata["option"] for own in fields(options) if own.metadata}


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """What the user asks of a filter, in the order of its parameters; None is "as stored".

    Args:
        fingerprinter: import path of the class that makes the fingerprints; for the others, see
            ``OPTIONS``. A number of seeds is how many to draw.
        on_difference: REPLACE, EXTEND or KEEP.
    """

    capacity: int | None = declare(
        None,
        validators.capacity,
        "URLs a generation takes before it grows",
        default=f"{DEFAULTS.capacity:,}",
    )
    error_rate: float | None = declare(
        None,
        validators.error_rate,
        "upper bound on the share of new URLs that are taken for seen",
        default=f"{DEFAULTS.error_rate:g}".replace("e-0", "e-"),
    )
    blocks: int | None = declare(
        None,
        validators.whole(1, MAX_BLOCKS, "the number of bitmaps to spread URLs over"),
        "number of bitmaps it is spread over",
        default="16, or as many more as keep a bitmap within 8 MiB",
        stored="blocks",
    )
    seeds: tuple[int, ...] | int | None = declare(
        None,
        validators.seeds,
        "number of hash functions, or a list of their seeds",
        default="as many as need the fewest bits for the error rate",
        stored="seeds",
        secret=True,
    )
    window: Span | str | None = declare(
        None,
        validators.window,
        'how long URLs are remembered: "5 months", "36h", "3 runs" or "never"',
        default="never: nothing is crawled again",
    )
    period: Span | None = declare(
        None,
        parse_span,
        "how often the filter rotates; it divides the window",
        default="1 month for windows of 2 months and more, 1 run for runs, else half of the window",
    )
    ring: str | None = declare(
        None,
        validators.one_of(WRITE_NEWEST, WRITE_ALL),
        f"order: {WRITE_NEWEST} or {WRITE_ALL}",
        default=f'`"{WRITE_NEWEST}"`',
        stored="order",
    )
    stagger: bool | None = declare(
        None,
        validators.flag,
        "true: blocks rotate one after the other, spread over the period",
        default="`False`: all blocks rotate when the period begins",
        stored="stagger",
    )
    counting: bool | None = declare(
        None,
        validators.flag,
        "true: URLs can be discarded, at four times the memory",
        default="`False`",
        stored="counting",
    )
    growth: float | None = declare(
        None,
        validators.growth,
        "size of the next layer in sizes of the last one; 0 never grows",
        default=f"{DEFAULTS.growth:g}",
    )
    max_memory: int | None = declare(
        None,
        validators.memory,
        "bytes beyond which the filter does not grow",
        default="no limit",
    )
    run: str | None = declare(
        None,
        validators.run,
        "id of the run, for windows in runs",
        default="none",
    )
    fingerprinter: str = ""
    on_difference: str = REPLACE

    @classmethod
    def parse(cls, **given: Any) -> "FilterOptions":
        """Check what a user gave.

        Raises:
            ConfigurationError: a value is out of its range.
        """
        parsers = {name: option.parse for name, option in OPTIONS.items()} | {
            "fingerprinter": validators.unicode,
            "on_difference": validators.one_of(REPLACE, EXTEND, KEEP),
        }
        return cls(**{n: parsers[n](n, value) for n, value in given.items() if value is not None})

    @classmethod
    def like(cls, header: Header, config: Config, run: str | None) -> "FilterOptions":
        """Return what makes a filter place items as another one does.

        Args:
            header: the other's header.
            config: its configuration.
            run: id of the run.
        """
        schedule = config.schedule
        return cls(
            **{n: getattr(header, own.stored) for n, own in OPTIONS.items() if own.stored},
            capacity=config.capacity,
            error_rate=config.error_rate,
            window=NEVER if schedule is None else schedule.window,
            period=None if schedule is None else schedule.period,
            growth=config.growth,
            max_memory=config.max_memory or 0,
            run=run,
            fingerprinter=header.fingerprinter,
        )

    def over(self, other: "FilterOptions") -> "FilterOptions":
        """Return these options, and another filter's where they are unset."""
        if self.window is not None:
            other = replace(other, period=None)
        given = {own.name: getattr(self, own.name) for own in fields(self)}
        return replace(other, **{n: value for n, value in given.items() if value not in (None, "")})

    def check_run(self) -> None:
        """Refuse a window in runs without an id of the run.

        Raises:
            ConfigurationError: there is none.
        """
        if isinstance(self.window, Span) and self.window.unit == RUNS and self.run is None:
            raise ConfigurationError(
                f'`window` = "{self.window}" counts runs: give `run` an id, the same in all '
                "clients of a run and another one in each run"
            )

    def config(self, stored: Config) -> Config:
        """Return what the user gave, the rest as stored.

        Raises:
            ConfigurationError: window and period do not go together.
        """
        return Config(
            self.capacity or stored.capacity,
            self.error_rate or stored.error_rate,
            self._schedule(stored.schedule),
            stored.growth if self.growth is None else self.growth,
            stored.max_memory if self.max_memory is None else self.max_memory or None,
        )

    def change(self, stored: Config, prefix: str) -> Config:
        """Return what becomes of the stored configuration of a filter.

        Raises:
            ConfigurationError: window and period do not go together.
            FilterMismatchError: URLs would be forgotten earlier, which is not wanted.
        """
        if self.on_difference == KEEP:
            return stored
        config = self.config(stored)
        schedule = config.schedule
        if self.on_difference == REPLACE or not (
            schedule and schedule.forgets_earlier(stored.schedule)
        ):
            return config
        there = _times(stored.schedule)
        raise FilterMismatchError(
            f"the filter {prefix!r} is stored with {there}, and {_times(schedule)} forgets URLs "
            f"earlier: `to_forget` to let it, or set {there} to use the filter as it is, or "
            "another `key` for a new one"
        )

    def new_header(self, default: Config = DEFAULTS) -> Header:
        """Return the header of a new filter.

        Raises:
            ConfigurationError: the filter is impossible.
        """
        config, order = self.config(default), self.ring or WRITE_NEWEST
        if self.counting and order == WRITE_ALL:
            raise ConfigurationError(
                f'`counting` = True and `ring` = "{WRITE_ALL}" do not go together: an item would '
                "have to be discarded from generations that may never have had it. Set "
                f'`ring` = "{WRITE_NEWEST}", or leave it unset'
            )
        sized = plan(
            config.capacity,
            config.error_rate,
            tested=config.tested(order),
            growing=bool(config.growth),
            blocks=self.blocks,
            num_hashes=len(self.seeds) if isinstance(self.seeds, tuple) else self.seeds,
            counting=bool(self.counting),
        )
        return Header(
            secrets.token_hex(16),
            sized.blocks,
            self.seeds if isinstance(self.seeds, tuple) else draw_seeds(sized.num_hashes),
            self.fingerprinter,
            order,
            bool(self.stagger),
            bool(self.counting),
        )

    def check(self, header: Header, prefix: str) -> None:
        """Refuse a stored header that differs from what the user asked for.

        Raises:
            FilterMismatchError: says what is stored, what was asked and what to do.
        """
        for name, option in OPTIONS.items():
            asked = getattr(self, name)
            if asked is None or not option.stored:
                continue
            stored = getattr(header, option.stored)
            if isinstance(stored, tuple) and isinstance(asked, int):
                stored = len(stored)
            if asked != stored:
                there = _shown(stored, "another")
                raise FilterMismatchError(
                    f"the filter {prefix!r} is stored with `{name}` = {there}, but `{name}` is "
                    f"{_shown(asked)}: remove `{name}` to use the filter as it is, or set another "
                    "`key` for a new one"
                )

    def _schedule(self, stored: Schedule | None) -> Schedule | None:
        window: Span | str | None = self.window
        if window is None and stored is not None:
            window = stored.window
        if not isinstance(window, Span):
            if self.period is not None:
                raise ConfigurationError(
                    f'`period` = "{self.period}" has nothing to rotate: set `window` too, or '
                    "remove it"
                )
            return None
        if stored is not None and window == stored.window:
            return Schedule.of(window, self.period or stored.period)
        return Schedule.of(window, self.period)


#: The options of a filter, by their names.
OPTIONS: Mapping[str, Option] = MappingProxyType(declared_in(FilterOptions))


def _times(schedule: Schedule | None) -> str:
    if schedule is None:
        return f'`window` = "{NEVER}"'
    return f'`window` = "{schedule.window}" and `period` = "{schedule.period}"'


def _shown(value: Any, article: str = "a") -> str:
    """Return a value for a message; of seeds, which are secret, how many they are."""
    return f"{article} list of {len(value)}" if isinstance(value, tuple) else repr(value)
