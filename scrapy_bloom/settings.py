"""Every ``BLOOM_*`` setting: its name, its default and what it may be."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from scrapy_bloom import values
from scrapy_bloom.errors import ConfigurationError
from scrapy_bloom.keys import Keys
from scrapy_bloom.windows import RUN

#: Value of BLOOM_START_WINDOW that remembers start requests like all others.
LASTING = "lasting"

FLUSH_NEVER, FLUSH_START, FLUSH_ALWAYS = "never", "start", "always"


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
        start_window: window of start requests; None treats them like all others.
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
    start_window: str | None
    flush: str
    timeout: float

    @classmethod
    def from_scrapy(cls, settings: BaseSettings, spider_name: str) -> "BloomSettings":
        """Read the settings of a crawl.

        Raises:
            ConfigurationError: a setting is unknown, or its value is not what it may be.
        """
        _refuse_unknown(settings)
        parsed = {
            name: default if values.is_unset(settings.get(name)) else parse(name, settings[name])
            for name, (default, parse) in SETTINGS.items()
        }
        key = _format_key(parsed.pop("BLOOM_KEY"), spider_name)
        attributes = {name.removeprefix("BLOOM_").lower(): value for name, value in parsed.items()}
        return cls(key=key, **attributes)


def is_developer_command(crawler: Crawler) -> bool:
    """Whether this is ``scrapy parse`` or ``scrapy shell``: they must not mark production URLs."""
    start = getattr(crawler.spidercls, "start", None)
    if getattr(start, "__module__", "").startswith("scrapy.commands."):
        return True
    # The shell is told by a default that only it sets.
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
    given, count = values.seeds(name, value)
    return given or count


def _start_window(name: str, value: Any) -> str | None:
    window = values.choice(name, value, [RUN, LASTING])
    return None if window == LASTING else window


#: Name -> (default, parser of the name and a value that is set).
SETTINGS: dict[str, tuple[Any, Callable[[str, Any], Any]]] = {
    "BLOOM_REDIS_URL": (None, _text),
    "BLOOM_REDIS_PARAMS": ({}, values.mapping),
    "BLOOM_KEY": ("%(spider)s:bloom", _text),
    "BLOOM_CAPACITY": (None, values.capacity),
    "BLOOM_ERROR_RATE": (None, values.error_rate),
    "BLOOM_BLOCKS": (None, values.blocks),
    "BLOOM_SEEDS": (None, _seeds),
    "BLOOM_START_WINDOW": (RUN, _start_window),
    "BLOOM_FLUSH": (
        FLUSH_NEVER,
        lambda name, value: values.choice(name, value, [FLUSH_NEVER, FLUSH_START, FLUSH_ALWAYS]),
    ),
    "BLOOM_TIMEOUT": (2.0, lambda name, value: values.seconds(name, value, 0.001, 3600)),
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
