"""Every ``BLOOM_*`` setting: its name, default and parser."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from scrapy.settings import BaseSettings

from scrapy_bloom import setting_parsers
from scrapy_bloom.bloom import errors, validators
from scrapy_bloom.bloom.errors import ConfigurationError, in_words, reword, rewording, shown
from scrapy_bloom.bloom.model.schedule import RUNS, Schedule, Span, parse_span
from scrapy_bloom.bloom.options import OPTIONS

SCHEDULED, CRAWLED, ITEMS = "scheduled", "crawled", "items"
DEGRADE, CLOSE = "degrade", "close"
#: The window of URLs that are remembered by this process for this run only.
RUN = "run"
#: The window of all URLs that no other window is named for.
LASTING = "lasting"
#: Names of further windows.
WINDOW_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
#: Options of filters -> attributes of ``BloomSettings``.
ATTRIBUTES = {option.name: option.name for option in OPTIONS}
ATTRIBUTES |= {"window": "recrawl_after", "period": "rotate_every"}
#: What error messages of the library call its parameters and remedies in a crawl.
WORDS = {
    **errors.WORDS,
    **{name: f"BLOOM_{attribute.upper()}" for name, attribute in ATTRIBUTES.items()},
    "key": "BLOOM_KEY",
    "url": "BLOOM_REDIS_URL",
    "params": "BLOOM_REDIS_PARAMS",
    "timeout": "BLOOM_TIMEOUT",
    "rights": "the filter's keys and the commands it needs: scrapy bloom acl prints the rules",
    "credentials": "in BLOOM_REDIS_URL or BLOOM_REDIS_PARAMS",
    "start": 'start a server there or set BLOOM_REDIS_URL = "embedded:"',
}


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


def _windows(name: str, value: Any) -> dict[str, NamedWindow]:
    return {window: _window(name, window, given) for window, given in _mapping(name, value).items()}


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    given = validators.mapping(name, value)
    for window in given:
        if not WINDOW_NAME.fullmatch(window) or window in (RUN, LASTING):
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
            f'"rotate_every" and "capacity"; got {shown(value)}'
        )
    span = validators.window(name, given["recrawl_after"])
    period = given.get("rotate_every")
    period = None if period is None else parse_span(f"{name}['rotate_every']", period)
    try:
        if isinstance(span, Span):
            Schedule.of(span, period)
    except ConfigurationError as error:
        reword(error, WORDS)
        raise ConfigurationError(f"{name} = {shown(value)}: {error}") from None
    capacity = given.get("capacity")
    if capacity is not None:
        capacity = validators.capacity(f"{name}['capacity']", capacity)
    return NamedWindow(span, period, capacity)


def _setting(
    default: Any,
    parse: Callable[[str, Any], Any],
    text: str,
    about: str = "",
    *,
    shown_default: str = "",
    **options: Any,
) -> Any:
    """Declare a setting.

    Args:
        default: its default.
        parse: its parser.
        text: what it is, in a line.
        about: what else to know, in Markdown.
        shown_default: the default in Markdown, where its value does not say it.
        options: of the field.
    """
    if isinstance(default, dict):
        options["default_factory"] = dict
    else:
        options["default"] = default
    texts = {"help": text, "about": about, "default": shown_default}
    return field(metadata={"parse": parse, **texts}, **options)


def _option(name: str) -> Any:
    """Declare a setting for an option of filters; None as stored, else the library's default."""
    option = next(option for option in OPTIONS if option.name == name)
    texts = (in_words(text, WORDS) for text in (option.help, option.about, option.default))
    text, about, shown_default = texts
    is_secret = name == "seeds"
    return _setting(
        None, option.parse, text, about, shown_default=shown_default, repr=not is_secret
    )


@dataclass(frozen=True, slots=True)
class BloomSettings:
    """The settings of one crawl, checked: ``BLOOM_<NAME>`` is the attribute ``<name>``."""

    enabled: bool = _setting(
        True,
        validators.flag,
        "False deduplicates in this process only, as Scrapy does, and uses no server",
    )
    redis_url: str | None = _setting(
        None,
        validators.text,
        "where the filter is kept; None for the server of scrapy-redis's settings",
        "`redis://`, `rediss://` (TLS), `unix://`, `redis+cluster://host:port,host:port`, "
        "`redis+sentinel://host:port,host:port/service/db`, each also with TLS (`rediss+...`); or "
        "`embedded:`, a Valkey server with its data in the project's `.scrapy` directory, which "
        "all processes of the project on this machine share, and which is started and stopped as "
        "needed (`embedded:/some/dir` keeps it elsewhere).",
        shown_default="the server of scrapy-redis's settings, else `redis://localhost:6379`",
        repr=False,
    )
    redis_params: dict[str, Any] = _setting(
        {},
        validators.mapping,
        "further arguments of the Redis client",
        "Passwords and the options of TLS are safer here than in the URL.",
        repr=False,
    )
    key: str = _setting(
        "%(spider)s:bloom",
        validators.text,
        "prefix of the filter's Redis keys",
        "`%(spider)s` is the spider's name, `%(bot)s` is `BOT_NAME`. One fixed name shares a "
        "filter between spiders.",
    )
    capacity: int | None = _option("capacity")
    error_rate: float | None = _option("error_rate")
    blocks: int | None = _option("blocks")
    seeds: tuple[int, ...] | int | None = _option("seeds")
    recrawl_after: Span | str | None = _option("window")
    rotate_every: Span | None = _option("period")
    run: str | None = _option("run")
    windows: dict[str, NamedWindow] = _setting(
        {},
        _windows,
        "windows that have a filter of their own, by name",
        'A value is a window such as `"1 day"`, or a dict of `recrawl_after`, `rotate_every` and '
        "`capacity`. The filter of the window `listing` is stored under `<BLOOM_KEY>:listing`.",
    )
    window_rules: tuple[tuple[re.Pattern[str], str], ...] = _setting(
        (),
        setting_parsers.rules,
        "patterns of URLs, and the names of their windows",
        "A pattern is a regular expression, searched in the URL; the first that matches counts.",
        shown_default="`[]`",
    )
    start_window: str = _setting(
        RUN,
        validators.text,
        '"run", or the window of start requests; "lasting" treats them like all others',
        "It holds for start requests and for the sitemaps of a `SitemapSpider`, whatever the rules "
        "say. `run` remembers them for the run only, so that the next run finds what is new.",
    )
    ring: str | None = _option("ring")
    stagger: bool | None = _option("stagger")
    counting: bool | None = _option("counting")
    growth: float | None = _option("growth")
    max_memory: int | None = _option("max_memory")
    pending_memory: int = _setting(
        512 << 20,
        validators.memory,
        "bytes of all claims with their requests on the server, of which one process has a "
        "quarter; 0 for no limit",
        "Beyond, requests are claimed without being stored, and their pages wait for them "
        "([bloom-not-kept](messages.md#bloom-not-kept)).",
        shown_default='`"512 MiB"`',
    )
    keep_headers: bool = _setting(
        True,
        validators.flag,
        "whether pending requests with cookies, credentials or a proxy are stored on the server",
        "`False`: requests that have `cookies`, a header `Cookie`, `Authorization` or "
        "`Proxy-Authorization`, or a `proxy` in `meta` are claimed without being stored, and none "
        "that is stored is put back. Change it when nothing is pending.",
    )
    remember: str = _setting(
        CRAWLED,
        validators.one_of(SCHEDULED, CRAWLED, ITEMS),
        "when a URL is remembered: once it is scheduled, crawled, or crawled with an item",
        "`crawled` loses no page in a crash, with any queue. `items` does the same, and remembers "
        "pages without an item for the run only, so that each run reads listings again "
        "([listings](../how-to/listings.md)). `scheduled` is the plain test-and-set, a little "
        "faster, and right where the queue outlives the crawl.",
    )
    heartbeat: float = _setting(
        30.0,
        partial(validators.seconds, low=1, high=3600),
        "seconds between a worker's heartbeats; without one for twice this, it is dead",
        "Other workers then take its claims over. On the same machine they notice at once.",
    )
    retry_after: int = _setting(
        86_400,
        validators.whole_seconds,
        "seconds until a URL that failed may be crawled again",
        "Until then, links to it count as seen. A URL is tried up to 5 times.",
        shown_default='`"1 day"`',
    )
    crawled_statuses: frozenset[int] = _setting(
        frozenset([*range(200, 400), 404, 410]),
        setting_parsers.statuses,
        "HTTP statuses of pages that count as crawled",
        "Pages with another status have failed, and are crawled again after `BLOOM_RETRY_AFTER`.",
        shown_default='`"200-399, 404, 410"`',
    )
    batch: int = _setting(
        64,
        validators.batch,
        "requests of a page in one lookup at most; 0 looks up each alone",
        "With 0, the crawl waits for each answer, and the order of requests is that of Scrapy.",
    )
    cache_size: int = _setting(
        200_000,
        validators.cache_size,
        "answers that this process caches; 0 for none",
        "8 bytes each. After a `rotate` or `clear` elsewhere they count for 5 seconds at most; "
        "while the server does not answer, at any age. 0 keeps 200,000 for that time only.",
    )
    on_redis_error: str = _setting(
        DEGRADE,
        validators.one_of(DEGRADE, CLOSE),
        "whether to go on crawling while the server does not answer, or to close the spider",
        "`close` ends the crawl with the reason `bloom_redis_unavailable`.",
    )
    wait_replicas: int = _setting(
        0,
        setting_parsers.replicas,
        "replicas of each primary that have the claims on a page's links before it is recorded; 0 "
        "does not wait",
        "For clusters whose primaries may fail. Writes wait, the crawl does not, for half of "
        "`BLOOM_TIMEOUT` at most; then pages are recorded all the same (`bloom/unreplicated`). "
        'Only with `BLOOM_REMEMBER = "crawled"` or `"items"`.',
    )
    timeout: float = _setting(
        2.0,
        partial(validators.seconds, low=0.001, high=3600),
        "seconds an operation may wait for the server at most",
        "Delays of the crawl itself do not count.",
    )
    metrics_port: tuple[str, int] | None = _setting(
        None,
        validators.listen_address,
        "port, or host:port, at which the crawl serves its metrics to Prometheus",
        "0 takes any free port. Without a host it is 127.0.0.1: [metrics](../metrics.md).",
        shown_default="none",
    )

    @classmethod
    def from_scrapy(cls, settings: BaseSettings, spider_name: str) -> "BloomSettings":
        """Read the settings of a crawl.

        Raises:
            ConfigurationError: a setting is unknown, its value is not what it may be, or settings
                contradict each other.
        """
        parsed = {name: parse_setting(name, settings[name]) for name in own_names(settings)}
        given = {SETTINGS[name][0]: value for name, value in parsed.items() if value is not None}
        names = {"spider": spider_name, "bot": str(settings.get("BOT_NAME") or "")}
        with rewording(WORDS):
            key = setting_parsers.key_prefix(given.get("key", DEFAULT_KEY), names)
        return cls(**given | {"key": key})

    @property
    def makes_claims(self) -> bool:
        """Whether a URL is claimed until its page is crawled."""
        return self.remember != SCHEDULED

    def parameters(self, window: NamedWindow | None = None) -> dict[str, Any]:
        """Return the options of the main filter, or of a named window's."""
        options = {name: getattr(self, attribute) for name, attribute in ATTRIBUTES.items()}
        if window is None:
            return options
        return options | {
            "blocks": None,
            "capacity": window.capacity,
            "window": window.recrawl_after,
            "period": window.rotate_every,
        }

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if isinstance(self.recrawl_after, Span):
            with rewording(WORDS):
                Schedule.of(self.recrawl_after, self.rotate_every)
        if self.wait_replicas and not self.makes_claims:
            raise ConfigurationError(
                f"BLOOM_WAIT_REPLICAS = {self.wait_replicas} waits before pages are recorded as "
                f'crawled, and BLOOM_REMEMBER is "{self.remember}": set BLOOM_REMEMBER = '
                f'"{CRAWLED}", or BLOOM_WAIT_REPLICAS = 0'
            )
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


#: Name -> attribute, and parser of the name and a value that is set.
SETTINGS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    f"BLOOM_{own.name.upper()}": (own.name, own.metadata["parse"]) for own in fields(BloomSettings)
}
DEFAULT_KEY = next(own.default for own in fields(BloomSettings) if own.name == "key")


def need_run(what: str) -> ConfigurationError:
    """Return the error for a window in runs without an id of the run."""
    return ConfigurationError(
        f"{what} counts runs, and BLOOM_RUN is not set: give all workers of a run the same id, and "
        "each run another one (for instance -s BLOOM_RUN=2027-01-31)"
    )


#: Settings of earlier versions, and what to do instead.
REMOVED = {
    "BLOOM_FLUSH": "remove it: SCHEDULER_FLUSH_ON_START = True clears the filter when a worker "
    "starts, and a flush at the end is ignored",
}


def own_names(settings: BaseSettings) -> list[str]:
    """Return the names of settings that are meant for this package, also wrong ones."""
    return [name for name in settings if isinstance(name, str) and name.startswith("BLOOM_")]


def parse_setting(name: str, value: Any) -> Any:
    """Return the value of a setting, None if it is unset.

    Raises:
        ConfigurationError: there is no such setting, or its value is not what it may be.
    """
    if name in REMOVED:
        raise ConfigurationError(f"{name} is no setting any more; {REMOVED[name]}")
    if name not in SETTINGS:
        close = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(SETTINGS)}"
        # The value is not shown: it may be a misspelt BLOOM_REDIS_URL, with a password.
        raise ConfigurationError(f"{name} is no setting of this version of scrapy-bloom; {hint}")
    return None if validators.is_unset(value) else SETTINGS[name][1](name, value)
