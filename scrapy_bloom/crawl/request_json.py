"""A pending request as the JSON text that Redis holds, and back, trusting nothing.

What is kept comes back exactly as it was; ``dump`` refuses the rest. Stored text is data: reading
it imports no class and evaluates no property.
"""

import inspect
import json
import math
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import Any, cast

from scrapy import Request, Spider
from scrapy.http import Headers
from scrapy.http.request import NO_CALLBACK

from scrapy_bloom.core.header import in_range
from scrapy_bloom.errors import shown

#: Characters of a stored request at most; this bounds its URL and the number of its values, too.
MAX_LENGTH = 65_536
#: Containers within containers at most, in any attribute.
MAX_DEPTH = 32
#: Bits of an integer at most: Python reads and writes such numbers whatever its settings are.
MAX_BITS = 2048
#: Priorities at most, and the negative at least.
MAX_PRIORITY = 1 << 31
#: A dict of one item with such a key stands for what JSON does not know.
_TAGS = frozenset({"bytes", "tuple", "dict"})
#: JSON would read these two characters as one.
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


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
        fields = _fields(request, spider)
        text = _json(fields)
        extras = _extras(request)
        if type(request) is Request and request.encoding == "utf-8" and not extras:
            # Nothing can come back otherwise: a trial would cost more than a round trip.
            return _bounded(text)
        again = _read(text, spider)
        lost = _changed(fields, _fields(again, spider))
        lost += _changed(extras, _extras(again))
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


_json = json.JSONEncoder(separators=(",", ":")).encode


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


def _fields(request: Request, spider: Spider | None) -> dict[str, object]:
    cls, defaults = type(request), _defaults()
    values = {name: getattr(request, name) for name in defaults}
    values["headers"] = _header_lines(request)
    values["body"] = _latin("body", request.body)
    for name in ("callback", "errback"):
        values[name] = _method_name(name, values[name], spider)
    _check(values)
    kept = {name: value for name, value in values.items() if value != defaults[name]}
    fields = _pack_each(kept)
    if cls is not Request:
        fields["class"] = f"{cls.__module__}.{cls.__name__}"
    if more := _pack_each({name: getattr(request, name) for name in _more(cls)}):
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


def _latin(name: str, value: object) -> str:
    if type(value) is not bytes:
        raise ValueError(_unfit(name, value))
    return value.decode("latin-1")


def _unfit(name: str, value: object) -> str:
    # Not the value: it may be secret.
    return f"{name} holds a value of type {type(value).__name__} that cannot be kept"


def _extras(request: Request) -> dict[str, object]:
    """Return what an instance holds and Request does not."""
    state = {k: v for k, v in getattr(request, "__dict__", {}).items() if k not in _OWN}
    for cls in set(type(request).__mro__) - set(Request.__mro__):
        for name, slot in vars(cls).items():
            if inspect.ismemberdescriptor(slot):
                with suppress(AttributeError):  # it is empty
                    state[name] = slot.__get__(request)
    return _pack_each(state)


#: What Request holds in its dict; nothing where it has slots, as in Scrapy 2.19.
_OWN = frozenset(getattr(Request("http://localhost"), "__dict__", ()))


def _changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    # Compared as JSON, because True == 1 == 1.0.
    names = sorted(before.keys() | after.keys())
    return [name for name in names if _json(before.get(name)) != _json(after.get(name))]


# -- reading --


def _read(text: str, spider: Spider | None) -> Request:
    if type(text) is not str or not text.isascii():
        raise ValueError("it is not ASCII text")
    stored = json.loads(_bounded(text))
    if type(stored) is not dict:
        raise ValueError("it is not a JSON object")
    values = _defaults() | {name: _unpack(value) for name, value in stored.items()}
    cls = _class(values.pop("class", f"{Request.__module__}.Request"))
    more = values.pop("more", {})
    if type(more) is not dict or not more.keys() <= set(_more(cls)):
        raise ValueError(f"more is not what {cls.__name__} takes")
    if unknown := values.keys() - _CHECKS.keys():
        raise ValueError(f"{shown(min(unknown), 40)} is unknown")
    _check(values)
    values["headers"] = [(_bytes(name), [*map(_bytes, of)]) for name, *of in values["headers"]]
    values["body"] = _bytes(values["body"])
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


def _bytes(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("it holds bytes beyond 255") from None


def _class(name: object) -> type[Request]:
    """Find a class that is imported already."""
    module_name, _, class_name = name.rpartition(".") if type(name) is str else ("", "", "")
    module = sys.modules.get(module_name)
    # No getattr, and no modules of other types: theirs may import something.
    found = vars(module).get(class_name) if type(module) is ModuleType else None
    if issubclass(type(found), type) and issubclass(cls := cast("type", found), Request):
        return cls
    raise ValueError(f"class {shown(name, 60)} is no imported class of requests")


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
    "priority": lambda value: in_range(value, -MAX_PRIORITY, MAX_PRIORITY),
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
    found = next((vars(cls)[name] for cls in type(spider).__mro__ if name in vars(cls)), None)
    return found if type(found) is FunctionType else None


# -- values: what JSON does not know is tagged --


class _Packer:
    """Turns the value of an attribute into what JSON knows, if it is not too large."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parts = 0

    def pack(self, value: object, depth: int = 0) -> Any:
        self.parts += 1
        if depth > MAX_DEPTH or self.parts > MAX_LENGTH:
            raise ValueError(f"{self.name} is nested too deeply or too large")
        if type(value) is list:
            return [self.pack(item, depth + 1) for item in value]
        if type(value) is tuple:
            return {"tuple": [self.pack(item, depth + 1) for item in value]}
        if type(value) is dict:
            items = [(self.pack(k, depth + 1), self.pack(v, depth + 1)) for k, v in value.items()]
            plain = all(type(key) is str for key in value) and not _is_tagged(value)
            return dict(items) if plain else {"dict": items}
        if type(value) is bytes:
            return {"bytes": value.decode("latin-1")}
        if not _is_scalar(value):
            raise ValueError(_unfit(self.name, value))
        return value


def _pack_each(values: dict[str, Any]) -> dict[str, object]:
    return {name: _Packer(name).pack(value) for name, value in values.items()}


def _unpack(value: Any, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if type(value) is list:
        return [_unpack(item, depth + 1) for item in value]
    if type(value) is dict:
        if _is_tagged(value):
            return _untag(*next(iter(value.items())), depth)
        return {key: _unpack(item, depth + 1) for key, item in value.items()}
    if not _is_scalar(value):
        raise ValueError("it holds a number out of bounds")
    return value


def _untag(tag: str, value: Any, depth: int) -> Any:
    if tag == "bytes" and type(value) is str:
        return _bytes(value)
    if tag == "tuple" and type(value) is list:
        return tuple(_unpack(item, depth + 1) for item in value)
    if tag == "dict" and type(value) is list:
        return {_unpack(k, depth + 1): _unpack(v, depth + 1) for k, v in value}
    raise ValueError(f"its {tag} is of a wrong type")


def _is_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and not _TAGS.isdisjoint(value)


def _is_scalar(value: object) -> bool:
    if type(value) is int:
        return value.bit_length() <= MAX_BITS
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is str:
        return not _SURROGATE_PAIR.search(value)
    return value is None or type(value) is bool
