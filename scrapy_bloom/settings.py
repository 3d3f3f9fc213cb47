"""Every ``BLOOM_*`` setting: its name, default and parser."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from scrapy.settings import BaseSettings

from scrapy_bloom import setting_parsers
from scrapy_bloom.bloom import errors, validators
from scrapy_bloom.bloom.errors import ConfigurationError, in_words, rewording
from scrapy_bloom.bloom.model.schedule import NEVER, RUNS, Schedule, Span
from scrapy_bloom.bloom.options import DEFAULTS, OPTIONS, FilterOptions
from scrapy_bloom.recrawl_rules import DEFAULT as DEFAULT  # noqa: PLC0414 - used with settings
from scrapy_bloom.recrawl_rules import RUN as RUN  # noqa: PLC0414
from scrapy_bloom.recrawl_rules import (
    After,
    RecrawlRule,
    RecrawlWindow,
    RecrawlWindows,
    parse_after,
    parse_rules,
)

SCHEDULED, CRAWLED, ITEMS = "scheduled", "crawled", "items"
DEGRADE, CLOSE = "degrade", "close"
#: Options of filters -> attributes of ``BloomSettings``.
ATTRIBUTES = {option.name: option.name for option in OPTIONS if not option.library_only}
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
    "to_forget": "run scrapy bloom settings --apply with these settings to forget earlier",
}


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
    """Declare a setting for an option of filters; None is the library's default."""
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
        "`%(spider)s` is the spider's name, `%(bot)s` is `BOT_NAME`, both with `%`, `{` and `}` "
        "percent-encoded. One fixed name shares a filter between spiders.",
    )
    capacity: int | None = _option("capacity")
    error_rate: float | None = _option("error_rate")
    blocks: int | None = _option("blocks")
    seeds: tuple[int, ...] | int | None = _option("seeds")
    recrawl_after: Span | str | None = _option("window")
    rotate_every: Span | None = _option("period")
    run: str | None = _option("run")
    recrawl_rules: tuple[RecrawlRule, ...] = _setting(
        (),
        parse_rules,
        "which pages are crawled again after another time: pairs of a condition and a window",
        "The first rule that matches counts. A condition is a regular expression, searched in the "
        "URL, or a dict of `url` (such an expression), `host` (the host, or a domain that it is "
        "in) and `depth`, which all have to hold. A window is as in `BLOOM_RECRAWL_AFTER`; "
        '`"run"`: remembered by this process for this run only; `"default"`: that of '
        "`BLOOM_RECRAWL_AFTER`; or a dict of `recrawl_after`, `rotate_every` and `capacity`. See "
        "[rules](../how-to/listings.md).",
        shown_default="`[]`",
    )
    start_recrawl_after: After = _setting(
        RUN,
        parse_after,
        'the window of start requests, as in a rule; "default" treats them like all others',
        "It holds for start requests and for the sitemaps of a `SitemapSpider`, whatever the rules "
        'say. `"run"` remembers them for the run only, so that the next run finds what is new. A '
        "window holds for start requests with `dont_filter`, too, as those for `start_urls` have "
        'it; under `"run"` and `"default"`, each run fetches these. It does not hold for what a '
        "`RedisSpider` takes from its list: that is always fetched.",
    )
    stagger: bool | None = _option("stagger")
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
    retry_item_errors: bool = _setting(
        True,
        validators.flag,
        "whether a page has failed if a pipeline raises an exception for one of its items",
        "It is crawled again after `BLOOM_RETRY_AFTER`, and yields all its items again "
        "([pages whose items fail](../how-to/items.md)). `DropItem` is no such exception. Not with "
        '`BLOOM_REMEMBER = "scheduled"`, where pages do not fail.',
    )
    crawled_statuses: frozenset[int] = _setting(
        frozenset([*range(200, 400), 404, 410]),
        setting_parsers.statuses,
        "HTTP statuses of pages that count as crawled",
        "Pages with another status have failed, and are crawled again after `BLOOM_RETRY_AFTER`.",
        shown_default='`"200-399, 404, 410"`',
    )
    ledger: bool = _setting(
        False,
        validators.flag,
        "whether pages that no page links any more are fetched again, too",
        "The requests of recorded pages are kept, packed. When such a page is forgotten, a crawl "
        "that has nothing else to do fetches it: [pages without links](../how-to/ledger.md). Only "
        'with `BLOOM_REMEMBER = "crawled"` or `"items"`, in filters that forget.',
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

    @property
    def may_skip_sitemaps(self) -> bool:
        """Whether a sitemap need not be read as long as it has not changed.

        Not under "scheduled": a crawl that is killed loses pages of sitemaps that count as seen.
        Nor if some pages are read in each run: only a sitemap that is read says which.
        """
        return self.remember == CRAWLED and all(rule.after != RUN for rule in self.recrawl_rules)

    def parameters(self, window: RecrawlWindow | None = None) -> dict[str, Any]:
        """Return the options of the main filter, or of another window's.

        What may change during the filter's life has its default where it is unset: what an earlier
        run was given does not count.
        """
        options = {name: getattr(self, attribute) for name, attribute in ATTRIBUTES.items()}
        if window is not None:
            own = {"window": window.recrawl_after, "period": window.rotate_every}
            options |= {"blocks": None, "capacity": window.capacity, **own}
        if options["window"] is None:
            options["window"] = NEVER
        if options["period"] is None and isinstance(options["window"], Span):
            options["period"] = Schedule.of(options["window"]).period
        for name in ("capacity", "error_rate", "growth"):
            if options[name] is None:
                options[name] = getattr(DEFAULTS, name)
        return options | {"max_memory": options["max_memory"] or 0}

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        with rewording(WORDS):
            FilterOptions(window=self.recrawl_after, period=self.rotate_every).config(DEFAULTS)
        if self.wait_replicas and not self.makes_claims:
            raise ConfigurationError(
                f"BLOOM_WAIT_REPLICAS = {self.wait_replicas} waits before pages are recorded as "
                f'crawled, and BLOOM_REMEMBER is "{self.remember}": set BLOOM_REMEMBER = '
                f'"{CRAWLED}", or BLOOM_WAIT_REPLICAS = 0'
            )
        if self.ledger and not self.makes_claims:
            raise ConfigurationError(
                "BLOOM_LEDGER = True keeps the requests of pages that are crawled, and "
                f'BLOOM_REMEMBER is "{self.remember}": set BLOOM_REMEMBER = "{CRAWLED}", or '
                "BLOOM_LEDGER = False"
            )
        after = {
            f"BLOOM_RECRAWL_RULES[{place}]": rule.after
            for place, rule in enumerate(self.recrawl_rules)
        }
        for setting, window in {
            **after,
            "BLOOM_START_RECRAWL_AFTER": self.start_recrawl_after,
        }.items():
            self._check_window(setting, window)
        self._check_run("BLOOM_RECRAWL_AFTER", self.recrawl_after)

    def _check_window(self, setting: str, after: After) -> None:
        if not isinstance(after, RecrawlWindow):
            return
        self._check_run(setting, after.recrawl_after)
        if after.capacity is not None and after.name == self.main_window.name:
            raise ConfigurationError(
                f'{setting} has a "capacity", and its window is the one of BLOOM_RECRAWL_AFTER, '
                'with the same filter: leave "capacity" out there, and set BLOOM_CAPACITY'
            )

    def _check_run(self, setting: str, span: Span | str | None) -> None:
        if isinstance(span, Span) and span.unit == RUNS and self.run is None:
            raise ConfigurationError(
                f'{setting} = "{span}" counts runs, and BLOOM_RUN is not set: give all workers of '
                "a run the same id, and each run another one (for instance -s BLOOM_RUN=2027-01-31)"
            )

    @property
    def schedule(self) -> Schedule | None:
        """When the main filter forgets; None for never."""
        if not isinstance(self.recrawl_after, Span):
            return None
        return Schedule.of(self.recrawl_after, self.rotate_every)

    @property
    def main_window(self) -> RecrawlWindow:
        """The window of all requests that no rule matches; unset counts as "never"."""
        if self.recrawl_after is None:
            return RecrawlWindow(NEVER)
        return RecrawlWindow(self.recrawl_after, self.rotate_every)

    @property
    def filters_start_requests(self) -> bool:
        """Whether start requests are looked up, also those with ``dont_filter``."""
        return isinstance(self.start_recrawl_after, RecrawlWindow)

    @property
    def windows(self) -> RecrawlWindows:
        """All windows, by the names of their filters."""
        return RecrawlWindows.of(self.main_window, self.start_recrawl_after, self.recrawl_rules)


#: Name -> attribute, and parser of the name and a value that is set.
SETTINGS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    f"BLOOM_{own.name.upper()}": (own.name, own.metadata["parse"]) for own in fields(BloomSettings)
}
DEFAULT_KEY = next(own.default for own in fields(BloomSettings) if own.name == "key")


def own_names(settings: BaseSettings) -> list[str]:
    """Return the names of settings that are meant for this package, also wrong ones."""
    return [name for name in settings if isinstance(name, str) and name.startswith("BLOOM_")]


def parse_setting(name: str, value: Any) -> Any:
    """Return the value of a setting, None if it is unset.

    Raises:
        ConfigurationError: there is no such setting, or its value is not what it may be.
    """
    if name not in SETTINGS:
        close = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(SETTINGS)}"
        # The value is not shown: it may be a misspelt BLOOM_REDIS_URL, with a password.
        raise ConfigurationError(f"{name} is no setting of this version of scrapy-bloom; {hint}")
    return None if validators.is_unset(value) else SETTINGS[name][1](name, value)
