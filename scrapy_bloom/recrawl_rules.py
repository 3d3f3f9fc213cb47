"""Re-crawl rules: which URLs are crawled again after how long, and which filter has them. Pure.

A rule is a condition and a window. Equal windows share a filter, whose name is made of the window
(``1-day``). A URL is looked up in the filter of the window that it has now, and in no other one.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.errors import ConfigurationError, rewording, shown
from scrapy_bloom.bloom.model.schedule import (
    NEVER,
    Schedule,
    Span,
    parse_span,
    plain,
    usual_period,
)

#: Names of windows, also in rules and ``meta``: of URLs that this process remembers for this run
#: only, which have no filter; and that of BLOOM_RECRAWL_AFTER, for all URLs that no rule matches.
RUN, DEFAULT = "run", "default"
#: Names of further windows; what is stored may be anything.
WINDOW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
#: Depth of the deepest request that a condition may name.
MAX_DEPTH = 1_000_000
#: What error messages call the parameters of a schedule.
_WORDS = {"window": "recrawl_after", "period": "rotate_every"}
_HOST = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*|\[[0-9a-f:.]{2,45}\]")


@dataclass(frozen=True, slots=True)
class RecrawlWindow:
    """How long URLs are remembered, in a filter that all workers share.

    Args:
        recrawl_after: a span, or ``"never"``: nothing is crawled again.
        rotate_every: how often the filter rotates; None by the window.
        capacity: URLs a generation takes; None as stored, else 1,000,000.
    """

    recrawl_after: Span | str
    rotate_every: Span | None = None
    capacity: int | None = None

    @property
    def name(self) -> str:
        """Name of its filter: equal windows have equal names, and ``24 hours`` is ``1 day``."""
        after, period = self.recrawl_after, self.rotate_every
        if isinstance(after, Span) and period is not None and period != usual_period(after):
            return f"{after} by {period}".replace(" ", "-")
        return f"{after}".replace(" ", "-")


#: A window, RUN or DEFAULT.
After = RecrawlWindow | str


@dataclass(frozen=True, slots=True)
class Condition:
    """What a request has to be for a rule to match; all that is given has to hold.

    Args:
        url: is searched in the URL.
        host: the URL's host, or a domain that it is in.
        depth: the request's depth.
    """

    url: re.Pattern[str] | None = None
    host: str = ""
    depth: int | None = None

    def holds(self, url: str, depth: int | None) -> bool:
        """Whether it holds of a request; one on the depth does not if that is not known."""
        if self.depth is not None and self.depth != depth:
            return False
        if self.host and not f".{_host_of(url)}".endswith(f".{self.host}"):
            return False
        return self.url is None or self.url.search(url) is not None


def _host_of(url: str) -> str:
    """Return the host of a URL in lower case; "" if it has none."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return ""
    return f"[{host}]" if ":" in host else host.rstrip(".")


@dataclass(frozen=True, slots=True)
class RecrawlRule:
    """A rule.

    Args:
        condition: which requests it matches.
        after: their window.
    """

    condition: Condition
    after: After


@dataclass(frozen=True, slots=True)
class RecrawlWindows:
    """All windows of a crawl, by the names of their filters.

    Args:
        main: the window of all requests that no rule matches.
        start: that of start requests and sitemaps.
        rules: the rules; the first that matches counts.
        others: windows that have a filter of their own.
    """

    main: RecrawlWindow
    start: str
    rules: tuple[tuple[Condition, str], ...]
    others: Mapping[str, RecrawlWindow]

    @classmethod
    def of(
        cls, main: RecrawlWindow, start: After, rules: Iterable[RecrawlRule]
    ) -> "RecrawlWindows":
        """Give each window its filter."""
        named, others = [], dict[str, RecrawlWindow]()
        for condition, after in [(None, start), *((rule.condition, rule.after) for rule in rules)]:
            name = _name_of(after, main)
            named.append((condition, name))
            if isinstance(after, RecrawlWindow) and name != DEFAULT:
                others[name] = _larger(after, others.get(name))
        return cls(
            main,
            named[0][1],
            tuple((condition, name) for condition, name in named if condition is not None),
            others,
        )

    def name(self, url: str, depth: int | None) -> str:
        """Return the name of a URL's window, by the rules.

        Args:
            url: the URL.
            depth: the request's depth; None if it is not known.
        """
        for condition, name in self.rules:
            if condition.holds(url, depth):
                return name
        return DEFAULT

    @property
    def digest(self) -> str:
        """What differs as soon as the rules may give a URL another window."""
        conditions = [
            (one.url and (one.url.pattern, one.url.flags), one.host, one.depth, name)
            for one, name in self.rules
        ]
        text = repr((self.main.name, self.start, conditions, sorted(self.others)))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def find(self, value: object) -> str:
        """Return the name of the window that a request names; also RUN and DEFAULT.

        Raises:
            ConfigurationError: it is no window, or none of these.
        """
        if isinstance(value, str) and value.strip().lower() in (RUN, DEFAULT):
            return value.strip().lower()
        span = validators.window("it", value)
        wanted = _name_of(RecrawlWindow(span), self.main)
        if wanted == DEFAULT or wanted in self.others:
            return wanted
        for name, window in {DEFAULT: self.main, **self.others}.items():
            if window.recrawl_after == span:
                return name
        raise ConfigurationError(f'no setting has the window "{span}"')

    @property
    def spans(self) -> list[str]:
        """What a request may name."""
        spans = (window.recrawl_after for window in (self.main, *self.others.values()))
        return [RUN, DEFAULT, *dict.fromkeys(map(str, spans))]


def _name_of(after: After, main: RecrawlWindow) -> str:
    if isinstance(after, str):
        return after
    return DEFAULT if after.name == main.name else after.name


def _larger(window: RecrawlWindow, before: RecrawlWindow | None) -> RecrawlWindow:
    """Return one of two equal windows, with the larger capacity."""
    capacities = [one.capacity for one in (window, before) if one is not None and one.capacity]
    return replace(window, capacity=max(capacities, default=None))


# -- parsers: see bloom/validators.py --


def parse_after(name: str, value: Any) -> After:
    """Parse a window as a rule has it: a span, ``"never"``, RUN, DEFAULT, or a dict."""
    given = dict(value) if isinstance(value, Mapping) else {"recrawl_after": value}
    if "recrawl_after" not in given or given.keys() - {"recrawl_after", "rotate_every", "capacity"}:
        raise ConfigurationError(
            f'{name} as a dict has "recrawl_after" and, if wanted, "rotate_every" and "capacity"; '
            f"got {shown(value)}"
        )
    span = given["recrawl_after"]
    word = span.strip().lower() if isinstance(span, str) else ""
    period, capacity = given.get("rotate_every"), given.get("capacity")
    if word in (RUN, DEFAULT):
        if period is not None or capacity is not None:
            raise ConfigurationError(
                f'{name} is "{word}", which has no "rotate_every" and no "capacity" of its own: '
                f"leave them out; got {shown(value)}"
            )
        return word
    try:
        after = validators.window(name, span)
    except ConfigurationError as error:
        what, got, reason = str(error).partition("; got ")
        words = f'"{NEVER}", "{RUN}" or "{DEFAULT}"'
        raise ConfigurationError(f"{what}, or {words}{got}{reason}") from None
    return _window(name, after, period, capacity)


def _window(name: str, after: Span | str, period: Any, capacity: Any) -> RecrawlWindow:
    every = None if period is None else parse_span(f"{name}['rotate_every']", period)
    if capacity is not None:
        capacity = validators.capacity(f"{name}['capacity']", capacity)
    if isinstance(after, str):
        if every is not None:
            raise ConfigurationError(
                f'{name} is "{NEVER}", which rotates never: leave "rotate_every" out'
            )
    else:
        try:
            with rewording(_WORDS):
                Schedule.of(after, every)
        except ConfigurationError as error:
            raise ConfigurationError(f"{name}: {error}") from None
    return RecrawlWindow(after, every, capacity)


def parse_rules(name: str, value: Any) -> tuple[RecrawlRule, ...]:
    """Parse pairs of a condition and a window, or their JSON."""
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, Sequence) or isinstance(found, str | bytes | bytearray):
        raise ConfigurationError(
            f'{name} is a list of rules, as [(r"/page/\\d+$", "1 day"), ({{"host": '
            f'"shop.example"}}, "2 weeks")], or JSON, as [["/page/", "1 day"]]; got {shown(value)}'
        )
    return tuple(_rule(f"{name}[{place}]", pair) for place, pair in enumerate(found))


def _rule(name: str, pair: Any) -> RecrawlRule:
    is_pair = isinstance(pair, Sequence) and not isinstance(pair, str | bytes | bytearray)
    if not is_pair or len(pair) != 2:
        raise ConfigurationError(
            f'{name} is a pair of a condition and a window, as (r"/page/\\d+$", "1 day"); got '
            f"{shown(pair)}"
        )
    condition, after = pair
    return RecrawlRule(_condition(name, condition), parse_after(name, after))


def _condition(name: str, value: Any) -> Condition:
    given = dict(value) if isinstance(value, Mapping) else {"url": value}
    if not given or given.keys() - {"url", "host", "depth"}:
        raise ConfigurationError(
            f"{name} has a condition that is no regular expression for the URL and no dict with "
            f'"url", "host" or "depth"; got {shown(value)}'
        )
    return Condition(
        _pattern(name, given["url"]) if "url" in given else None,
        _host(name, given["host"]) if "host" in given else "",
        _depth(name, given["depth"]) if "depth" in given else None,
    )


def _pattern(name: str, value: Any) -> re.Pattern[str]:
    reason = ""
    try:
        compiled = re.compile(value)
        if isinstance(compiled.pattern, str):
            return compiled
    except re.error as error:
        reason = f" ({error})"
    except (TypeError, ValueError, RecursionError, OverflowError):
        pass
    raise ConfigurationError(
        f"{name}: the condition on the URL is a regular expression, which is searched in it; got "
        f"{shown(value)}{reason}"
    )


def _host(name: str, value: Any) -> str:
    host = ""
    if isinstance(value, str):
        host = value.strip().lower().rstrip(".")
        if not host.isascii():
            try:
                host = host.encode("idna").decode("ascii")  # as URLs have it
            except UnicodeError:
                host = ""
    if not _HOST.fullmatch(host):
        raise ConfigurationError(
            f'{name}: "host" is the name of a host, or of a domain that it is in, as '
            f'"shop.example", without scheme, port and path; got {shown(value)}'
        )
    return host


def _depth(name: str, value: Any) -> int:
    depth = plain(value)
    if type(depth) is not int or not 0 <= depth <= MAX_DEPTH:
        raise ConfigurationError(
            f'{name}: "depth" is the number of links from a start request, a whole number such as '
            f"1; got {shown(value)}"
        )
    return depth
