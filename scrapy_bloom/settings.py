"""Every ``BLOOM_*`` setting: its name, default and parser."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from scrapy.settings import BaseSettings

from scrapy_bloom.bloom import errors, validators
from scrapy_bloom.bloom.errors import ConfigurationError, in_words, rewording
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.schedule import NEVER, RUNS, Schedule, Span
from scrapy_bloom.bloom.options import (
    DEFAULTS,
    OPTIONS,
    FilterOptions,
    Option,
    declare,
    declared_in,
)
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

SCHEDULED, CRAWLED, ITEMS, DELIVERED = "scheduled", "crawled", "items", "delivered"
DEGRADE, CLOSE = "degrade", "close"
#: Settings that have no use under "scheduled", and what they do.
_NEEDS_CLAIMS = {
    "wait_replicas": "waits before pages are recorded as crawled",
    "ledger": "keeps the requests of pages that are crawled",
    "confirm": "waits before pages are recorded as crawled",
}
#: Options of filters that are no settings of a crawl, and those that have other names there.
LIBRARY_ONLY = ("ring", "counting")
_NAMES = {"window": "recrawl_after", "period": "rotate_every"}
#: Options of filters -> the names of their settings, in lower case and without the prefix.
FILTER_SETTINGS = {name: _NAMES.get(name, name) for name in OPTIONS if name not in LIBRARY_ONLY}
_OPTIONS = {setting: name for name, setting in FILTER_SETTINGS.items()}
#: What error messages of the library call its parameters and remedies in a crawl.
WORDS = {
    **errors.WORDS,
    **{name: f"BLOOM_{setting.upper()}" for name, setting in FILTER_SETTINGS.items()},
    "key": "BLOOM_KEY",
    "url": "BLOOM_REDIS_URL",
    "params": "BLOOM_REDIS_PARAMS",
    "timeout": "BLOOM_TIMEOUT",
    "rights": "the filter's keys and the commands it needs: scrapy bloom acl prints the rules",
    "credentials": "in BLOOM_REDIS_URL or BLOOM_REDIS_PARAMS",
    "start": 'start a server there or set BLOOM_REDIS_URL = "embedded:"',
    "to_forget": "run 'scrapy bloom settings --apply' once",
}


@dataclass(frozen=True, slots=True)
class BloomSettings:
    """The settings of one crawl, checked: ``BLOOM_<NAME>`` is the attribute ``<name>``."""

    #: Settings that are options of filters.
    options: FilterOptions = field(default_factory=FilterOptions)

    enabled: bool = declare(
        True,
        validators.flag,
        "False deduplicates in this process only, as Scrapy does, and uses no server",
    )
    redis_url: str | None = declare(
        None,
        validators.text,
        "where the filter is kept; None for the server of scrapy-redis's settings",
        default="the server of scrapy-redis's settings, else `redis://localhost:6379`",
        secret=True,
    )
    redis_params: dict[str, Any] = declare(
        {},
        validators.mapping,
        "further arguments of the Redis client",
        secret=True,
    )
    key: str = declare(
        "%(spider)s:bloom",
        validators.text,
        "prefix of the filter's Redis keys",
    )
    recrawl_rules: tuple[RecrawlRule, ...] = declare(
        (),
        parse_rules,
        "which pages are crawled again after another time: pairs of a condition and a window",
        default="`[]`",
    )
    start_recrawl_after: After = declare(
        RUN,
        parse_after,
        'the window of start requests, as in a rule; "default" treats them like all others',
    )
    pending_memory: int = declare(
        512 << 20,
        validators.memory,
        "bytes of all claims with their requests on the server, of which one process has a "
        "quarter; 0 for no limit",
        default='`"512 MiB"`',
    )
    keep_headers: bool = declare(
        True,
        validators.flag,
        "whether pending requests with cookies, credentials or a proxy are stored on the server",
    )
    remember: str = declare(
        CRAWLED,
        validators.one_of(SCHEDULED, CRAWLED, ITEMS),
        "when a URL is remembered: once it is scheduled, crawled, or crawled with an item",
    )
    heartbeat: float = declare(
        30.0,
        partial(validators.seconds, low=1, high=3600),
        "seconds between a worker's heartbeats; without one for twice this, it is dead",
    )
    retry_after: int = declare(
        86_400,
        validators.whole_seconds,
        "the time until a URL that failed may be crawled again",
        default='`"1 day"`',
    )
    retry_item_errors: bool = declare(
        True,
        validators.flag,
        "whether a page has failed if a pipeline raises an exception for one of its items",
    )
    confirm: str = declare(
        CRAWLED,
        validators.one_of(CRAWLED, DELIVERED),
        "when a page is done: once its items have left the pipelines, or once feeds are stored",
    )
    crawled_statuses: frozenset[int] = declare(
        frozenset([*range(200, 400), 404, 410]),
        validators.statuses,
        "HTTP statuses of pages that count as crawled",
        default='`"200-399, 404, 410"`',
    )
    ledger: bool = declare(
        False,
        validators.flag,
        "whether pages that no page links any more are fetched again, too",
    )
    batch: int = declare(
        64,
        validators.whole(
            0, 4_096, "the number of requests of a page in one lookup, 0 for each alone"
        ),
        "requests of a page in one lookup at most; 0 looks up each alone",
    )
    cache_size: int = declare(
        200_000,
        validators.whole(
            0, 100_000_000, "the number of answers that this process caches, 0 for none"
        ),
        "answers that this process caches; 0 for none",
    )
    on_redis_error: str = declare(
        DEGRADE,
        validators.one_of(DEGRADE, CLOSE),
        "whether to go on crawling while the server does not answer, or to close the spider",
    )
    wait_replicas: int = declare(
        0,
        validators.whole(
            0,
            100,
            "the replicas of each primary that have the claims on a page's links before the page "
            "is recorded",
        ),
        "replicas of each primary that have the claims on a page's links before it is recorded; 0 "
        "does not wait",
    )
    timeout: float = declare(
        2.0,
        partial(validators.seconds, low=0.001, high=3600),
        "seconds an operation may wait for the server at most",
    )
    metrics_port: tuple[str, int] | None = declare(
        None,
        validators.listen_address,
        "port, or host:port, at which the crawl serves its metrics to Prometheus",
        default="none",
    )

    @classmethod
    def from_scrapy(cls, settings: BaseSettings, spider_name: str) -> "BloomSettings":
        """Read the settings of a crawl.

        Raises:
            ConfigurationError: a setting is unknown, its value is not what it may be, or settings
                contradict each other.
        """
        own, options = dict[str, Any](), dict[str, Any]()
        for name in own_names(settings):
            value = parse_setting(name, settings[name])
            attribute = name.removeprefix("BLOOM_").lower()
            if value is not None and attribute in _OPTIONS:
                options[_OPTIONS[attribute]] = value
            elif value is not None:
                own[attribute] = value
        names = {"spider": spider_name, "bot": str(settings.get("BOT_NAME") or "")}
        template = own.get("key", SETTINGS["BLOOM_KEY"].value)
        with rewording(WORDS):
            own["key"] = _key_prefix(template, names)
        return cls(FilterOptions(**options), **own)

    @property
    def makes_claims(self) -> bool:
        """Whether a URL is claimed until its page is crawled."""
        return self.remember != SCHEDULED

    @property
    def may_skip_sitemaps(self) -> bool:
        """Whether a sitemap need not be read as long as it has not changed."""
        # A crawl that is killed loses pages of sitemaps that count as seen under "scheduled"; and
        # only a sitemap that is read says which pages are read in each run.
        return self.remember == CRAWLED and all(rule.after != RUN for rule in self.recrawl_rules)

    def parameters(self, window: RecrawlWindow | None = None) -> dict[str, Any]:
        """Return the options of the main filter, or of another window's."""
        # What may change has its default where it is unset, whatever an earlier run was given.
        options = self.options
        if window is not None:
            after, every = window.recrawl_after, window.rotate_every
            options = replace(
                options, blocks=None, capacity=window.capacity, window=after, period=every
            )
        if isinstance(options.window, Span) and options.period is None:
            options = replace(options, period=Schedule.of(options.window).period)
        config = options.config(DEFAULTS)
        return {name: getattr(options, name) for name in FILTER_SETTINGS} | {
            "window": options.window or NEVER,
            "capacity": config.capacity,
            "error_rate": config.error_rate,
            "growth": config.growth,
            "max_memory": config.max_memory or 0,
        }

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        with rewording(WORDS):
            self.options.config(DEFAULTS)
        for name, what in _NEEDS_CLAIMS.items():
            setting, value = f"BLOOM_{name.upper()}", getattr(self, name)
            default = SETTINGS[setting].value
            if value != default and not self.makes_claims:
                raise ConfigurationError(
                    f'{setting} = {value!r} {what}, and BLOOM_REMEMBER is "{self.remember}": set '
                    f'BLOOM_REMEMBER = "{CRAWLED}", or {setting} = {default!r}'
                )
        for place, rule in enumerate(self.recrawl_rules):
            self._check_window(f"BLOOM_RECRAWL_RULES[{place}]", rule.after)
        self._check_window("BLOOM_START_RECRAWL_AFTER", self.start_recrawl_after)
        self._check_run("BLOOM_RECRAWL_AFTER", self.options.window)

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
        if isinstance(span, Span) and span.unit == RUNS and self.options.run is None:
            raise ConfigurationError(
                f'{setting} = "{span}" counts runs, and BLOOM_RUN is not set: give all workers of '
                "a run the same id, and each run another one (for instance -s BLOOM_RUN=2027-01-31)"
            )

    @property
    def schedule(self) -> Schedule | None:
        """When the main filter forgets; None for never."""
        return self.options.config(DEFAULTS).schedule

    @property
    def main_window(self) -> RecrawlWindow:
        """The window of all requests that no rule matches; unset counts as "never"."""
        return RecrawlWindow(self.options.window or NEVER, self.options.period)

    @property
    def filters_start_requests(self) -> bool:
        """Whether start requests are looked up, also those with ``dont_filter``."""
        return isinstance(self.start_recrawl_after, RecrawlWindow)

    @property
    def windows(self) -> RecrawlWindows:
        """All windows, by the names of their filters."""
        return RecrawlWindows.of(self.main_window, self.start_recrawl_after, self.recrawl_rules)


def _in_a_crawl(option: Option) -> Option:
    """Return an option of filters as a setting: its texts name settings."""
    text, default = in_words(option.help, WORDS), in_words(option.default, WORDS)
    return replace(option, help=text, default=default)


#: All settings, by their names.
SETTINGS: dict[str, Option] = {
    f"BLOOM_{name.upper()}": option
    for name, option in (
        *((setting, _in_a_crawl(OPTIONS[name])) for name, setting in FILTER_SETTINGS.items()),
        *declared_in(BloomSettings).items(),
    )
}


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
    return None if validators.is_unset(value) else SETTINGS[name].parse(name, value)


def _key_prefix(template: str, names: Mapping[str, str]) -> str:
    """Return the prefix of the filter's keys: names replace ``%(spider)s`` and the like."""
    parts = re.split(r"%\((\w+)\)s", template)
    unknown = any(name not in names for name in parts[1::2])
    if unknown or any("%(" in text for text in parts[::2]):
        raise ConfigurationError(
            "BLOOM_KEY is a string in which %(spider)s stands for the spider's name and %(bot)s "
            "for BOT_NAME, and nothing else in parentheses after a percent sign does; got "
            f"{template!r:.100}"
        )
    encoded = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})  # no two names alike
    parts[1::2] = [names[name].translate(encoded) for name in parts[1::2]]
    return Keys("".join(parts)).prefix
