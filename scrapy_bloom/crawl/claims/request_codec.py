"""A pending request as the JSON text that Redis holds, and back, trusting nothing.

Requests come back exactly as they were, except that instances of subclasses of str, dict and the
like become plain ones; ``dump`` refuses the rest. Stored text is data: reading it imports no class
and evaluates no property.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Headers
from scrapy.http.request import NO_CALLBACK

from scrapy_bloom.bloom.errors import shown
from scrapy_bloom.bloom.model.header import in_range
from scrapy_bloom.crawl.claims.request_values import (
    Packer,
    Unpacker,
    class_path,
    find_class,
    held,
    imported_class,
    latin,
    static_attribute,
    to_json,
    unfit,
)

#: Characters of a stored request at most; this bounds its URL, too.
MAX_LENGTH = 65_536
#: Priorities at most, and the negative at least.
MAX_PRIORITY = 1 << 31
#: Encodings that extend ASCII; pages without a declared one have the second.
_CERTAIN_ENCODINGS = ("utf-8", "cp1252")
#: The package whose classes of requests are always found.
_SCRAPY = "scrapy."


class NotKeepableError(ValueError):
    """A request cannot be kept exactly; the message names the attribute."""


def dump(request: Request, spider: Spider | None) -> str:
    """Return a request as JSON: ASCII, compact, one line.

    Args:
        request: a request of any class.
        spider: the spider whose methods its callbacks are; None if it has no callbacks.

    Raises:
        NotKeepableError: it would not come back exactly as it is.
    """
    try:
        packer = Packer(spider)
        fields = _fields(request, spider, packer)
        text = to_json(fields)
        extras = _extras(request, packer)
        is_plain = type(request) is Request and request.encoding in _CERTAIN_ENCODINGS
        if is_plain and packer.is_certain and not extras:
            # It comes back unchanged: a trial would cost more than a round trip.
            return _bounded(text)
        again = _read(text, spider)
        lost = _changed(fields, _fields(again, spider, packer))
        lost += _changed(extras, _extras(again, packer))
    except Exception as error:  # a user's class may raise anything
        raise NotKeepableError(_reason(error)) from None
    if type(again) is not type(request) or lost:
        raise NotKeepableError(f"{', '.join(lost) or 'class'} would not come back unchanged")
    return text


def load(text: str, spider: Spider) -> Request:
    """Restore a request.

    Args:
        text: what ``dump`` returned.
        spider: the spider whose methods its callbacks will be.

    Raises:
        ValueError: it is not a good stored request.
    """
    try:
        return _read(text, spider)
    except Exception as error:  # a user's class may raise anything, the parser RecursionError
        raise ValueError(_reason(error)) from None


def _reason(error: Exception) -> str:
    return f"{error!s:.200}" if type(error) is ValueError else shown(error)


def _defaults() -> dict[str, Any]:
    """Return what is left out; new containers each time, because a class may change them."""
    return {
        "url": None,
        "callback": None,
        "errback": None,
        "method": "GET",
        "headers": [],
        "body": "",
        "cookies": {},
        "meta": {},
        "cb_kwargs": {},
        "encoding": "utf-8",
        "priority": 0,
        "dont_filter": False,
        "flags": [],
    }


# -- writing --


def _fields(request: Request, spider: Spider | None, packer: Packer) -> dict[str, object]:
    cls, defaults = type(request), _defaults()
    values = {name: getattr(request, name) for name in defaults}
    values["headers"] = _header_lines(request)
    values["body"] = _latin("body", request.body)
    for name in ("callback", "errback"):
        values[name] = _method_name(name, values[name], spider)
    _check(values)
    referer = _take_referer(values["headers"], values["url"])
    kept = {name: value for name, value in values.items() if value != defaults[name]}
    fields = packer.pack_each(kept)
    if referer:
        fields["referer"] = referer
    if cls is not Request:
        fields["class"] = _class_path(cls, spider)
    if cls is not Request and (
        more := packer.pack_each({name: getattr(request, name) for name in _more(cls)})
    ):
        fields["more"] = more
    return fields


def _more(cls: type[Request]) -> list[str]:
    """Return the names of the arguments that a class has and Request has not."""
    return [name for name in cls.attributes if name not in _CHECKS]


def _header_lines(request: Request) -> list[list[str]]:
    headers = request.headers
    if type(headers) is not Headers or headers.encoding != request.encoding:
        raise ValueError("headers have a class or encoding of their own")
    if any(headers.normkey(name) != name for name in dict.keys(headers)):
        raise ValueError("headers have a name that Scrapy spells otherwise")
    # The method of Headers looks each name up again.
    lines = ([name, *values] for name, values in dict.items(headers))
    return [[_latin("headers", text) for text in line] for line in lines]


def _take_referer(lines: list[list[str]], url: str) -> list[object] | None:
    """Remove the last header if it is a Referer: it begins as the URL does, in most requests.

    For instance ``[20, "page/1"]``: the first 20 characters of the URL, then these.
    """
    if not lines or lines[-1][0] != "Referer" or len(lines[-1]) != 2:
        return None
    _, referer = lines.pop()
    lengths = range(1, min(len(url), len(referer)) + 1)
    shared = bisect_right(lengths, False, key=lambda length: url[:length] != referer[:length])
    return [shared, referer[shared:]]


def _latin(name: str, value: object) -> str:
    if type(value) is not bytes:
        raise unfit(name, value)
    return value.decode("latin-1")


def _extras(request: Request, packer: Packer) -> dict[str, object]:
    """Return what an instance holds and Request does not."""
    # It has slots from Scrapy 2.19 on.
    if type(request) is Request and getattr(request, "__dict__", {}).keys() <= _OWN:
        return {}
    state = held(request, Request)
    return packer.pack_each({name: state[name] for name in state if name not in _OWN})


#: What Request holds in its dict; nothing where it has slots, as in Scrapy 2.19.
_OWN = frozenset(getattr(Request("http://localhost"), "__dict__", ()))


def _changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    # Compared as JSON, because True == 1 == 1.0.
    names = sorted(before.keys() | after.keys())
    return [name for name in names if to_json(before.get(name)) != to_json(after.get(name))]


# -- reading --


def _read(text: str, spider: Spider | None) -> Request:
    if type(text) is not str or not text.isascii():
        raise ValueError("it is not ASCII text")
    stored = json.loads(_bounded(text))
    if type(stored) is not dict:
        raise ValueError("it is not a JSON object")
    unpack = Unpacker(spider).unpack
    values = _defaults() | {name: unpack(value) for name, value in stored.items()}
    cls = _class(values.pop("class"), spider) if "class" in values else Request
    referer = values.pop("referer", None)
    more = values.pop("more", {})
    if type(more) is not dict or not more.keys() <= set(_more(cls)):
        raise ValueError(f"more is not what {cls.__name__} takes")
    if unknown := values.keys() - _CHECKS.keys():
        raise ValueError(f"{shown(min(unknown), 40)} is unknown")
    _check(values)
    if referer is not None:
        values["headers"].append(["Referer", _referer(referer, values["url"])])
    values["headers"] = [(latin(name), [*map(latin, of)]) for name, *of in values["headers"]]
    values["body"] = latin(values["body"])
    for name in ("callback", "errback"):
        values[name] = _method(name, values[name], spider)
    request = cls(**values, **more)
    if request.url != values["url"]:
        raise ValueError("url is not as Scrapy writes it")
    return request


def _bounded(text: str) -> str:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it takes more than {MAX_LENGTH:,} characters")
    return text


def _referer(stored: object, url: str) -> str:
    if type(stored) is list and len(stored) == 2:
        shared, rest = stored
        if in_range(shared, 0, len(url)) and type(rest) is str:
            return url[:shared] + rest
    raise ValueError("referer is of a wrong type or out of bounds")


# -- classes of requests: Scrapy's, and what the spider's module defines or imports --


def _class_path(cls: type, spider: Spider | None) -> str:
    if cls.__module__.startswith(_SCRAPY):
        return f"{cls.__module__}:{cls.__qualname__}"
    return class_path(cls, spider)


def _class(path: object, spider: Spider | None) -> type[Request]:
    is_scrapys = type(path) is str and path.startswith(_SCRAPY)
    cls = imported_class(path) if is_scrapys else find_class(path, spider)
    if issubclass(cls, Request):
        return cls
    raise ValueError(f"class {shown(path, 60)} is not a class of requests")


# -- checks, of what is to be written and of what was read --


def _check(values: dict[str, Any]) -> None:
    for name, is_good in _CHECKS.items():
        if not is_good(values[name]):
            raise ValueError(f"{name} is of a wrong type or out of bounds")


def _is_callback(value: object) -> bool:
    return value is None or value is False or (type(value) is str and value.isidentifier())


def _is_cookies(value: object) -> bool:
    one_by_one = type(value) is list and all(type(item) is dict for item in value)
    return one_by_one or type(value) is dict


def _is_encoding(value: object) -> bool:
    if type(value) is not str:
        return False
    try:
        "".encode(value)
    except (LookupError, ValueError):
        return False
    return True


def _is_headers(value: object) -> bool:
    return type(value) is list and all(_is_strings(line) and line for line in value)


def _is_strings(value: object) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


#: All arguments of Request, with what is good for them as stored.
_CHECKS: dict[str, Callable[[object], bool]] = {
    "url": lambda value: type(value) is str and bool(re.match("https?://", value)),
    "callback": _is_callback,
    "errback": _is_callback,
    "method": lambda value: type(value) is str and bool(re.fullmatch("[A-Z0-9_-]{1,40}", value)),
    "headers": _is_headers,
    "body": lambda value: type(value) is str,
    "cookies": _is_cookies,
    "meta": lambda value: type(value) is dict,
    "cb_kwargs": lambda value: type(value) is dict,
    "encoding": _is_encoding,
    "priority": lambda value: type(value) is int and -MAX_PRIORITY <= value <= MAX_PRIORITY,
    "dont_filter": lambda value: type(value) is bool,
    "flags": _is_strings,
}


# -- callbacks: the name of a method, or false for NO_CALLBACK --


def _method_name(name: str, method: object, spider: Spider | None) -> str | bool | None:
    if method is None or method is NO_CALLBACK:
        return None if method is None else False
    if type(method) is MethodType and method.__self__ is spider:
        # A decorated method may bear the name of its decorator's function.
        for candidate in (getattr(method, "__name__", ""), *dir(type(spider))):
            if _function(candidate, spider) is method.__func__:
                return candidate
    raise ValueError(f"{name} is not a method of the spider")


def _method(name: str, value: str | bool | None, spider: Spider | None) -> object:
    if type(value) is not str:
        return None if value is None else NO_CALLBACK
    function = _function(value, spider)
    if function is None:
        raise ValueError(f"{name} {shown(value, 40)} is not a method of the spider")
    return MethodType(function, spider)


def _function(name: str, spider: Spider | None) -> FunctionType | None:
    """Return the function of a method. No getattr: it would evaluate properties."""
    found = static_attribute(type(spider), name)
    return found if type(found) is FunctionType else None
