"""Encodes a pending request as JSON for Redis, and decodes it.

Requests come back exactly as they were, except that instances of subclasses of str, dict and the
like become plain ones; ``dump`` refuses requests that would not. Stored text is data: reading it
imports no module, calls no function that it names, and evaluates no property of the spider.
"""

import json
from collections.abc import Collection
from os.path import commonprefix
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from scrapy import Request, Spider, signals
from scrapy.http import Headers
from scrapy.http.request import NO_CALLBACK

from scrapy_bloom.bloom.errors import shown
from scrapy_bloom.crawl.request_values import (
    MAX_LENGTH,
    class_path,
    find_class,
    pack,
    to_json,
    unpack,
)

#: Of the pages that a spider may crawl: others could name a file.
_SCHEMES = ("http://", "https://")
#: Encodings in which an escaped URL does not change; pages that declare none have the second.
_CERTAIN_ENCODINGS = ("utf-8", "cp1252")
#: Headers that show who sends a request.
_CREDENTIALS = ("Authorization", "Cookie", "Proxy-Authorization")
#: Values of arguments that are not stored. Empty containers are not stored either.
_DEFAULTS: dict[str, Any] = {
    "callback": None,
    "errback": None,
    "method": "GET",
    "headers": None,
    "body": None,
    "cookies": None,
    "meta": None,
    "cb_kwargs": None,
    "encoding": "utf-8",
    "priority": 0,
    "dont_filter": False,
    "flags": None,
}


class NotKeepableError(ValueError):
    """A request cannot be stored exactly; the message names the attribute."""


def has_credentials(request: Request) -> bool:
    """Whether a request carries cookies or credentials, or is sent through a proxy.

    Not those that middlewares of the downloader set.
    """
    later = set_later(request)
    has_proxy = "proxy" in request.meta and "proxy" not in later.meta
    own = (name for name in _CREDENTIALS if name not in later.headers)
    return bool(request.cookies) or has_proxy or any(name in request.headers for name in own)


def dump(request: Request, spider: Spider | None) -> str:
    """Return a request as JSON: ASCII, compact, one line; without what was set on it later.

    Args:
        request: a request of any class.
        spider: the spider whose methods its callbacks are; None if it has no callbacks.

    Raises:
        NotKeepableError: it would not come back exactly as it is.
    """
    try:
        fields, is_certain = _fields(request, spider)
        text = _bounded(to_json(fields))
        if not (is_certain and _is_certain(request)):
            _try(text, request, fields, spider)
    except Exception as error:  # a user's class may raise anything
        raise NotKeepableError(_reason(error)) from None
    return text


def load(text: str, spider: Spider | None, *, keeps_headers: bool = True) -> Request:
    """Restore a request.

    Args:
        text: what ``dump`` returned.
        spider: the spider whose methods its callbacks will be.
        keeps_headers: whether requests with credentials may have been stored.

    Raises:
        ValueError: it is not a good stored request, or has credentials.
    """
    try:
        request = _read(text, spider)
    except Exception as error:  # a user's class may raise anything, the parser RecursionError
        raise ValueError(_reason(error)) from None
    if not keeps_headers and has_credentials(request):
        raise ValueError("it has cookies, credentials or a proxy, and BLOOM_KEEP_HEADERS is False")
    return request


def without_meta(text: str, key: str) -> str:
    """Return a stored request without a key of its ``meta``; "" if the text is damaged."""
    try:
        fields = json.loads(_bounded(text))
        meta = fields.get("meta", {})
        meta.pop(key, None)
        if not meta:
            fields.pop("meta", None)
        return to_json(fields)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""


def method_of(spider: Spider, name: str) -> Any:
    """Return the method of a spider that the callback of a stored request may be.

    Raises:
        ValueError: there is none of that name.
    """
    return _method("callback", name, spider)


def _reason(error: Exception) -> str:
    return f"{error!s:.200}" if type(error) is ValueError else shown(error)


# -- writing --


def _fields(request: Request, spider: Spider | None) -> tuple[dict[str, object], bool]:
    """Return what is stored of a request, and whether it comes back unchanged: see ``pack``."""
    fields, values = dict[str, object](), dict[str, object]()
    later = set_later(request) if SET_LATER in request.meta else NO_PARTS  # as of most requests
    for name in request.attributes:
        value = getattr(request, name)
        if name == "meta" and SET_LATER in value:
            value = {key: one for key, one in value.items() if key not in (SET_LATER, *later.meta)}
        default = _DEFAULTS.get(name)
        if name in _DEFAULTS and (value == default or not (value or default)):
            continue
        if name in ("callback", "errback"):
            fields[name] = _method_name(name, value, spider)
        elif name == "headers":
            if lines := _header_lines(value, request.url, later.headers):
                fields[name] = lines
        else:
            values[name] = value
    if type(request) is not Request:
        fields["_class"] = class_path(type(request), spider)
    packed, is_certain = pack(values, spider)
    return packed | fields, is_certain


def _header_lines(headers: Headers, url: str, later: Collection[str]) -> list[list[Any]]:
    """Return headers with their values: ``[["Accept", "text/html"]]``.

    A Referer begins like the URL, in most requests: ``["Referer", 20, "page/1"]`` has the first 20
    characters of the URL, then these.
    """
    lines: list[list[Any]] = []
    for name, values in dict.items(headers):  # Headers.items looks each name up again
        text = name.decode("latin-1")
        if text in later:
            continue
        lines.append([text, *(value.decode("latin-1") for value in values)])
        if name == b"Referer" and len(values) == 1:
            referer = lines[-1].pop()
            shared = len(commonprefix((url, referer)))  # noqa: RUF071 - of characters
            lines[-1] += [shared, referer[shared:]]
    return lines


def _is_certain(request: Request) -> bool:
    """Whether a request comes back unchanged: a trial would double the time."""
    return (
        type(request) is Request
        and request.url.startswith(_SCHEMES)
        and request.encoding in _CERTAIN_ENCODINGS
        and type(request.priority) is int
        and not _own_state(request)
    )


def _own_state(request: Request) -> dict[str, object]:
    """Return the state of an instance that its attributes do not show."""
    names = {*getattr(request, "__dict__", ())}
    if type(request) is not Request:
        names.update(*(getattr(cls, "__slots__", ()) for cls in type(request).__mro__))
    own = names.difference(_REQUEST_STATE, request.attributes)
    return {name: getattr(request, name, None) for name in own}


#: What Request holds in its dict or, from Scrapy 2.19 on, in slots.
_REQUEST_STATE = {
    *getattr(Request("http://localhost"), "__dict__", ()),
    *getattr(Request, "__slots__", ()),
}


def _try(text: str, request: Request, fields: dict[str, object], spider: Spider | None) -> None:
    """Refuse a request that does not come back unchanged."""
    again = _read(text, spider)
    before = fields | _own_state(request)
    after = _fields(again, spider)[0] | _own_state(again)
    names = before.keys() | after.keys()
    lost = sorted(name for name in names if before.get(name) != after.get(name))
    if lost:
        raise ValueError(f"{', '.join(lost)} would not come back unchanged")


# -- reading --


def _read(text: str, spider: Spider | None) -> Request:
    stored = json.loads(_bounded(text))
    if type(stored) is not dict or not str(stored.get("url")).startswith(_SCHEMES):
        raise ValueError("it is not a JSON object with a URL of a page")
    fields = {name: unpack(value, spider) for name, value in stored.items()}
    cls = _class(fields.pop("_class"), spider) if "_class" in fields else Request
    if "headers" in fields:
        fields["headers"] = [_header(*line, url=fields["url"]) for line in fields["headers"]]
    for name in fields.keys() & {"callback", "errback"}:
        fields[name] = _method(name, fields[name], spider)
    request = cls(**(_DEFAULTS | fields))
    if request.url != fields["url"]:
        raise ValueError("url is not as Scrapy writes it")
    return request


def _bounded(text: str) -> str:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it takes more than {MAX_LENGTH:,} characters")
    return text


def _class(path: str, spider: Spider | None) -> type[Request]:
    cls = find_class(path, spider)
    if issubclass(cls, Request):
        return cls
    raise ValueError(f"class {shown(path, 60)} is not a class of requests")


def _header(name: str, *values: Any, url: str) -> tuple[bytes, list[bytes]]:
    if values and type(values[0]) is int:
        shared, rest = values
        values = (url[:shared] + rest,)
    return name.encode("latin-1"), [value.encode("latin-1") for value in values]


# -- callbacks: the name of a method, or false for NO_CALLBACK --

#: Callbacks and errbacks among the methods of Scrapy's own spiders.
_SCRAPYS_CALLBACKS = {
    *("parse", "_parse", "parse_start_url", "parse_with_rules", "_callback", "_errback"),
    *("parse_node", "parse_nodes", "parse_row", "parse_rows", "_parse_sitemap"),
}
#: Methods that Scrapy calls if a spider has them, though its own classes have none (some versions
#: have ``start_requests``), and the usual names of handlers of signals.
_NO_CALLBACKS = {"closed", "start_requests", *vars(signals)}


def _method_name(name: str, method: object, spider: Spider | None) -> str | bool:
    if method is NO_CALLBACK:
        return False
    if type(method) is MethodType and method.__self__ is spider:
        # A decorated method may bear the name of its decorator's function.
        for candidate in (getattr(method, "__name__", ""), *dir(type(spider))):
            if _function(candidate, spider) is method.__func__:
                return candidate
    raise ValueError(f"{name} is not a method of the spider")


def _method(name: str, value: object, spider: Spider | None) -> object:
    if value is False:
        return NO_CALLBACK
    function = _function(value, spider)
    if function is None:
        raise ValueError(f"{name} {shown(value, 40)} is not a method of the spider")
    return MethodType(function, spider)


def _function(name: Any, spider: Spider | None) -> FunctionType | None:
    """Return the function of a method that may be a callback.

    No getattr: it would evaluate properties. A stored name is not trusted: it never leads to what a
    spider is made or run with, as ``__init__`` and ``from_crawler`` are, overridden or not.
    """
    if str(name).startswith("__") or name in _NO_CALLBACKS:
        return None
    owners = [cls for cls in type(spider).__mro__ if name in vars(cls)]
    if not owners or (name not in _SCRAPYS_CALLBACKS and any(map(_is_scrapys, owners))):
        return None
    found = vars(owners[0])[name]
    return found if type(found) is FunctionType else None


def _is_scrapys(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("scrapy", "scrapy_redis")


#: The key of ``meta``, of redirects and retries, that holds the names in a queue.
SET_LATER = "bloom_set_later"


class PartNames(NamedTuple):
    """Names of what a request has.

    Redirects and retries are made after the middlewares of the downloader have run, which run again
    when the request is put back, by then with another proxy: so it is stored without what they set.

    Args:
        meta: keys of its ``meta``.
        headers: its headers.
    """

    meta: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: Request) -> "PartNames":
        """Return all that a request has."""
        headers = (name.decode("latin-1") for name in dict.keys(request.headers))
        return cls(frozenset(filter(_is_text, request.meta)), frozenset(headers))

    def without(self, others: "PartNames") -> "PartNames":
        """Return these names but others."""
        return PartNames(self.meta - others.meta, self.headers - others.headers)


NO_PARTS = PartNames()


def set_later(request: Request) -> PartNames:
    """Return what was set on the requests that became this one; stored text may be anything."""
    found = request.meta.get(SET_LATER)
    if not isinstance(found, dict):
        return NO_PARTS
    parts = (found.get(name) for name in PartNames._fields)
    lists = [part if isinstance(part, list) else [] for part in parts]
    return PartNames(*(frozenset(filter(_is_text, part)) for part in lists))


def note_set_later(request: Request, names: PartNames) -> None:
    """Note what was set on the requests that became a request."""
    request.meta[SET_LATER] = {
        name: sorted(part) for name, part in zip(PartNames._fields, names, strict=True)
    }


def _is_text(name: object) -> bool:
    return isinstance(name, str)
