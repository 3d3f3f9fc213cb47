"""Every ``BLOOM_*`` setting: its name, its default and what it may be."""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.schedule import RUNS, SECONDS, Schedule, Span, parse_span

SCHEDULED, CRAWLED = "scheduled", "crawled"
DEGRADE, CLOSE = "degrade", "close"
FLUSH_NEVER, FLUSH_START, FLUSH_ALWAYS = "never", "start", "always"


@dataclass(frozen=True, slots=True)
class NamedWindow:
    """A window that has a filter of its own.

    Args:
        recrawl_after: how long URLs are remembered; ``"never"`` re-crawls nothing.
        rotate_every: how often its filter rotates; None as stored, else by the window.
        capacity: URLs a generation takes; None as stored, else 1,000,000.
    """

    recrawl_after: Span | str
    rotate_every: Span | None = None
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class BloomSettings:
    """The settings of one crawl, checked.

    Args:
        redis_url: where the filter is kept; None for the server of scrapy-redis's settings.
        redis_params: further arguments of the Redis client.
        key: prefix of the filter's Redis keys.
        capacity: URLs; None as stored, else 1,000,000.
        error_rate: bound on the false-positive rate; None as stored, else 1e-5.
        blocks: number of blocks; None as stored, else by capacity.
        seeds: list of seeds or how many to draw; None as stored, else by error rate.
        recrawl_after: how long URLs are remembered; ``"never"`` re-crawls nothing; None as stored,
            else never.
        rotate_every: how often the filter rotates; None as stored, else by the window.
        run: id of this run, for windows in runs.
        windows: windows that have a filter of their own, by name.
        window_rules: patterns of URLs, and the names of their windows.
        start_window: window of start requests; ``"lasting"`` treats them like all others.
        ring: order of the ring; None as stored, else ``"write-newest"``.
        stagger: whether blocks rotate one after the other; None as stored, else all at once.
        counting: whether URLs can be discarded, at four times the memory; None as stored, else not.
        growth: size of the next layer in sizes of the last one; None as stored, else 2.
        max_memory: bytes of a filter beyond which it does not grow; None as stored, else no limit.
        pending_memory: bytes that claims and their requests take on the server at most; a process
            has a quarter of it. 0 for no limit.
        remember: when a URL is remembered: once it is scheduled, or once it is crawled.
        heartbeat: seconds between a worker's signs of life; silent for twice this, it is dead.
        retry_after: seconds until a URL that failed may be crawled again.
        crawled_statuses: HTTP statuses of pages that count as crawled.
        batch: requests of a page that are asked about together at most; 0 asks about each alone.
        cache_size: answers that are kept in this process; 0 for none.
        on_redis_error: whether to crawl on while the server does not answer, or to close.
        flush: which of scrapy-redis's flushes may clear the filter.
        timeout: seconds a call may block at most.
    """

    redis_url: str | None = field(repr=False)
    redis_params: dict[str, Any] = field(repr=False)
    key: str
    capacity: int | None
    error_rate: float | None
    blocks: int | None
    seeds: tuple[int, ...] | int | None = field(repr=False)
    recrawl_after: Span | str | None
    rotate_every: Span | None
    run: str | None
    windows: dict[str, NamedWindow]
    window_rules: tuple[tuple[re.Pattern[str], str], ...]
    start_window: str
    ring: str | None
    stagger: bool | None
    counting: bool | None
    growth: float | None
    max_memory: int | None
    pending_memory: int
    remember: str
    heartbeat: float
    retry_after: int
    crawled_statuses: frozenset[int]
    batch: int
    cache_size: int
    on_redis_error: str
    flush: str
    timeout: float

    @classmethod
    def from_scrapy(cls, settings: BaseSettings, spider_name: str) -> "BloomSettings":
        """Read the settings of a crawl.

        Raises:
            ConfigurationError: a setting is unknown, its value is not what it may be, or settings
                contradict each other.
        """
        _refuse_unknown(settings)
        parsed = {
            name: default
            if validators.is_unset(settings.get(name))
            else parse(name, settings[name])
            for name, (default, parse) in SETTINGS.items()
        }
        key = _format_key(parsed.pop("BLOOM_KEY"), spider_name)
        attributes = {name.removeprefix("BLOOM_").lower(): value for name, value in parsed.items()}
        return cls(key=key, **attributes)

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if isinstance(self.recrawl_after, Span):
            Schedule.of(self.recrawl_after, self.rotate_every)
        names = (RUN, LASTING, *self.windows)
        for setting, name in (
            ("BLOOM_START_WINDOW", self.start_window),
            *(("BLOOM_WINDOW_RULES", name) for _, name in self.window_rules),
        ):
            if name not in names:
                raise ConfigurationError(
                    f"{setting} names the window {name!r:.60}, and there are "
                    f"{', '.join(map(repr, names))}: add it to BLOOM_WINDOWS, or correct the name"
                )
        spans: dict[str, Span | str | None] = {"BLOOM_RECRAWL_AFTER": self.recrawl_after}
        spans |= {
            f"BLOOM_WINDOWS[{n!r}]": window.recrawl_after for n, window in self.windows.items()
        }
        for setting, span in spans.items():
            if isinstance(span, Span) and span.unit == RUNS and self.run is None:
                raise need_run(f'{setting} = "{span}"')


def need_run(what: str) -> ConfigurationError:
    """Return the error for a window in runs without an id of the run."""
    return ConfigurationError(
        f"{what} counts runs, and BLOOM_RUN is not set: give all workers of a run the same id, and "
        "each run another one (say -s BLOOM_RUN=2027-01-31)"
    )


def is_developer_command(crawler: Crawler) -> bool:
    """Whether ``scrapy parse`` or another command runs that gives the spider requests of its own.

    It must not mark production URLs.
    """
    start = getattr(crawler.spidercls, "start", None)
    return getattr(start, "__module__", "").startswith("scrapy.commands.")


def is_shell(crawler: Crawler) -> bool:
    """Whether ``scrapy shell`` runs: there, nothing is filtered."""
    # Only the shell sets this default.
    settings = crawler.settings
    shell = settings.getpriority("LOGSTATS_INTERVAL") == SETTINGS_PRIORITIES["command"]
    return shell and settings.getfloat("LOGSTATS_INTERVAL") == 0


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(
            f"{name} is a string; write it in quotes (got {type(value).__name__})"
        )
    return value.strip()


def _seeds(name: str, value: Any) -> tuple[int, ...] | int | None:
    given, count = validators.seeds(name, value)
    return given or count


def _windows(name: str, value: Any) -> dict[str, NamedWindow]:
    return {window: _window(name, window, given) for window, given in _mapping(name, value).items()}


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    given = validators.mapping(name, value)
    for window in given:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,39}", window) or window in (RUN, LASTING):
            raise ConfigurationError(
                f"{name} has a window of the name {window!r:.60}: names begin with a letter, have "
                f"up to 40 letters, digits, - and _, and are not {RUN!r} or {LASTING!r}"
            )
    return given


def _window(name: str, window: str, value: Any) -> NamedWindow:
    name = f"{name}[{window!r}]"
    given = value if isinstance(value, Mapping) else {"recrawl_after": value}
    unknown = given.keys() - {"recrawl_after", "rotate_every", "capacity"}
    if unknown or "recrawl_after" not in given:
        raise ConfigurationError(
            f'{name} is a window such as "1 day", or a dict with "recrawl_after" and, if wanted, '
            f'"rotate_every" and "capacity"; got {value!r:.100}'
        )
    span = validators.window(name, given["recrawl_after"])
    period = given.get("rotate_every")
    period = None if period is None else parse_span(f"{name}['rotate_every']", period)
    try:
        if isinstance(span, Span):
            Schedule.of(span, period)
    except ConfigurationError as error:
        # It calls them by the names of the settings of the main filter.
        raise ConfigurationError(f"{name} = {value!r:.100}: {error}") from None
    capacity = given.get("capacity")
    if capacity is not None:
        capacity = validators.capacity(f"{name}['capacity']", capacity)
    return NamedWindow(span, period, capacity)


def _rules(name: str, value: Any) -> tuple[tuple[re.Pattern[str], str], ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, Mapping) or not isinstance(value, Sequence):
        raise ConfigurationError(
            f'{name} is a list of pairs like (r"/page/\\d+", "listing"), or its JSON'
        )
    return tuple(_rule(name, pair) for pair in value)


def _rule(name: str, pair: Any) -> tuple[re.Pattern[str], str]:
    try:
        pattern, window = pair
        compiled = re.compile(pattern)
        if isinstance(compiled.pattern, str) and isinstance(window, str):
            return compiled, window
        reason = ""
    except (TypeError, ValueError, RecursionError, OverflowError):
        reason = ""
    except re.error as error:
        reason = f" ({error})"
    raise ConfigurationError(
        f"{name} is a list of pairs of a regular expression and the name of a window; "
        f"{pair!r:.100} is none{reason}"
    )


def _one_of(*choices: str) -> Callable[[str, Any], str]:
    return lambda name, value: validators.choice(name, value, list(choices))


def _whole_seconds(name: str, value: Any) -> int:
    span = parse_span(name, value)
    if span.unit != SECONDS:
        raise ConfigurationError(
            f'{name} is a length of time such as "1 day", "6 hours" or a number of seconds; got '
            f"{value!r:.60}"
        )
    return span.count


def _statuses(name: str, value: Any) -> frozenset[int]:
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, int):
        parts = [parts]
    try:
        found = frozenset(status for part in parts for status in _status_range(str(part).strip()))
    except (TypeError, ValueError):
        found = frozenset()
    if not found:
        raise ConfigurationError(
            f'{name} is a list of HTTP statuses and ranges of them, as "200-399, 404" or '
            f"[200, 301, 404], each from 100 to 599; got {value!r:.60}"
        )
    return found


def _status_range(text: str) -> range:
    match = re.fullmatch(r"([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(text)
    return range(int(match[1]), int(match[2] or match[1]) + 1)


#: The window of URLs that are remembered by this process for this run only.
RUN = "run"
#: The window of all URLs that no other window is named for.
LASTING = "lasting"
#: Name -> (default, parser of the name and a value that is set).
SETTINGS: dict[str, tuple[Any, Callable[[str, Any], Any]]] = {
    "BLOOM_REDIS_URL": (None, _text),
    "BLOOM_REDIS_PARAMS": ({}, validators.mapping),
    "BLOOM_KEY": ("%(spider)s:bloom", _text),
    "BLOOM_CAPACITY": (None, validators.capacity),
    "BLOOM_ERROR_RATE": (None, validators.error_rate),
    "BLOOM_BLOCKS": (None, validators.blocks),
    "BLOOM_SEEDS": (None, _seeds),
    "BLOOM_RECRAWL_AFTER": (None, validators.window),
    "BLOOM_ROTATE_EVERY": (None, parse_span),
    "BLOOM_RUN": (None, validators.run),
    "BLOOM_WINDOWS": ({}, _windows),
    "BLOOM_WINDOW_RULES": ((), _rules),
    "BLOOM_START_WINDOW": (RUN, _text),
    "BLOOM_RING": (None, validators.ring_order),
    "BLOOM_STAGGER": (None, validators.flag),
    "BLOOM_COUNTING": (None, validators.flag),
    "BLOOM_GROWTH": (None, validators.growth),
    "BLOOM_MAX_MEMORY": (None, validators.memory),
    "BLOOM_PENDING_MEMORY": (512 << 20, validators.memory),
    "BLOOM_REMEMBER": (CRAWLED, _one_of(SCHEDULED, CRAWLED)),
    "BLOOM_HEARTBEAT": (30.0, lambda name, value: validators.seconds(name, value, 1, 3600)),
    "BLOOM_RETRY_AFTER": (86_400, _whole_seconds),
    "BLOOM_CRAWLED_STATUSES": (frozenset(range(200, 400)), _statuses),
    "BLOOM_BATCH": (64, validators.batch),
    "BLOOM_CACHE_SIZE": (200_000, validators.cache_size),
    "BLOOM_ON_REDIS_ERROR": (DEGRADE, _one_of(DEGRADE, CLOSE)),
    "BLOOM_FLUSH": (FLUSH_NEVER, _one_of(FLUSH_NEVER, FLUSH_START, FLUSH_ALWAYS)),
    "BLOOM_TIMEOUT": (2.0, lambda name, value: validators.seconds(name, value, 0.001, 3600)),
}


def _refuse_unknown(settings: BaseSettings) -> None:
    for name in settings:
        if isinstance(name, str) and name.startswith("BLOOM_") and name not in SETTINGS:
            close = difflib.get_close_matches(name, SETTINGS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(SETTINGS)}"
            # The value is not shown: it may be a misspelt BLOOM_REDIS_URL, with a password.
            raise ConfigurationError(
                f"{name} is no setting of this version of scrapy-bloom; {hint}"
            )


def _format_key(template: str, spider_name: str) -> str:
    key = template.replace("%(spider)s", spider_name)
    if "%(" in key:
        raise ConfigurationError(
            "BLOOM_KEY is a string in which %(spider)s stands for the spider's name, and nothing "
            f"else in parentheses after a percent sign does; got {template!r:.100}"
        )
    return Keys(key).prefix
