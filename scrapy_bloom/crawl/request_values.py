"""Converts the values of a request's attributes to JSON and back, exactly.

A value of a type that JSON does not have becomes a dict with one item, its tag and its content:
``{"tuple": [1, 2]}``. Stored text is data: ``unpack`` imports no module.
"""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from json import JSONEncoder
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import ModuleType
from typing import Any, TypeGuard
from uuid import UUID

from scrapy import Spider

from scrapy_bloom.bloom.errors import shown

#: Characters of a stored request at most; this bounds its URL, too.
MAX_LENGTH = 65_536
#: Values of a request at most: each takes two of these characters.
MAX_VALUES = MAX_LENGTH // 2
#: Containers within containers at most.
MAX_DEPTH = 32
#: JSON would read these two characters as one.
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")

#: Compact JSON.
to_json = JSONEncoder(separators=(",", ":")).encode


def pack(attributes: Mapping[str, object], spider: Spider | None) -> tuple[dict[str, Any], bool]:
    """Return attributes of a request as JSON has them, and whether they come back unchanged.

    Args:
        attributes: name -> value.
        spider: the spider whose modules have the classes that can be stored.

    Returns:
        Them; False if only a trial can show whether they would come back unchanged.

    Raises:
        ValueError: one cannot be stored; the message has its name.
    """
    packer = _Packer(spider)
    return {name: packer.pack(name, value) for name, value in attributes.items()}, packer.is_certain


class _Packer:
    """Packs the attributes of one request: see ``pack``."""

    def __init__(self, spider: Spider | None) -> None:
        self.is_certain = True
        self._spider = spider
        self._name = ""
        #: Values, and characters of texts.
        self._count = self._length = 0

    def pack(self, name: str, value: object) -> Any:
        self._name = name
        return self._pack(value, 0)

    def _pack(self, value: Any, depth: int) -> Any:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_VALUES:
            raise ValueError(f"{self._name} is nested too deeply or too large")
        cls = type(value)
        if cls is str:
            self._length += len(value)
        if self._length > MAX_LENGTH or (cls is bytes and len(value) > MAX_LENGTH):
            # Now, and not when all of it is written.
            raise ValueError(f"{self._name} takes more than {MAX_LENGTH:,} characters")
        if cls in _PLAIN or (cls is str and not _has_surrogate_pair(value)):
            return value
        if cls is list:
            return [self._pack(item, depth + 1) for item in value]
        if cls is dict:
            return self._pack_dict(value, depth)
        return self._pack_other(value, depth)

    def _pack_dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        if set(map(type, value)) <= {str} and not _is_tagged(value):
            return {self._pack(k, depth): self._pack(v, depth + 1) for k, v in value.items()}
        self.is_certain = False  # what a key is stored as may not be one, or be another key
        return {"dict": self._pack([[key, item] for key, item in value.items()], depth)}

    def _pack_other(self, value: Any, depth: int) -> Any:
        cls = type(value)
        if cls in (tuple, set, frozenset):
            items = self._pack([*value], depth)
            if cls is not tuple:
                items.sort(key=to_json)
                self.is_certain = False  # see _pack_dict
            return {cls.__name__: items}
        if cls in _TEXTS:
            tag, write, read = _TEXTS[cls]
            text = write(value)
            # A time's text has no fold and no name of its zone, and Python 3.11 misreads some.
            if repr(read(text)) == repr(value):
                return {tag: self._pack(text, depth)}
        elif kind := _kind(cls):
            state = self._pack(self._state(value, kind), depth + 1)
            return {kind: [class_path(cls, self._spider), state]}
        for base in _BASES:
            if isinstance(value, base) and type(plain := base(value)) is base is not cls:
                return self._pack(plain, depth)
        raise self._unfit(value)

    def _state(self, value: Any, kind: str) -> object:
        """Return what ``_instance`` makes an equal instance of."""
        cls, own = type(value), {*getattr(value, "__dict__", ())}
        if kind == "enum" and cls.__members__.get(value.name) is value:
            return value.name
        if kind == "namedtuple" and not own and len(value) == len(cls._fields):
            return [*value]
        if kind == "dataclass" and own <= {*(names := [field.name for field in fields(cls)])}:
            self.is_certain = False
            return {name: getattr(value, name) for name in names}
        raise self._unfit(value)

    def _unfit(self, value: object) -> ValueError:
        # Not the value: it may be secret.
        kind = type(value).__name__
        return ValueError(f"{self._name} holds a value of type {kind} that cannot be stored")


def unpack(value: Any, spider: Spider | None, depth: int = 0) -> Any:
    """Return a value that ``pack`` packed.

    Args:
        value: as JSON has it.
        spider: the spider whose modules have the classes that may be stored.
        depth: of the value.

    Raises:
        Exception: of any class; nothing was packed so.
    """
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if type(value) is list:
        return [unpack(item, spider, depth + 1) for item in value]
    if type(value) is not dict:
        return value
    if not _is_tagged(value):
        return {key: unpack(item, spider, depth + 1) for key, item in value.items()}
    ((tag, content),) = value.items()
    if tag in _READERS:
        return _READERS[tag](content)
    if tag in _KINDS:
        path, state = content
        return _instance(tag, find_class(path, spider), unpack(state, spider, depth + 1))
    return _CONTAINERS[tag](unpack(content, spider, depth))


def _instance(kind: str, cls: Any, state: Any) -> object:
    if _kind(cls) != kind:
        raise ValueError(f"{cls.__name__} is not a class of kind {kind}")
    if kind == "enum":
        return cls[state]
    if kind == "namedtuple":
        return cls._make(state)
    # Not by __init__, which may change what it is given.
    made = object.__new__(cls)
    for field in fields(cls):
        object.__setattr__(made, field.name, state[field.name])
    return made


# -- types --


def _is_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and not _TAGS.isdisjoint(value)


def _has_surrogate_pair(text: str) -> bool:
    return not text.isascii() and bool(_SURROGATE_PAIR.search(text))


def _to_bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _duration(value: timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


def _to_duration(text: str) -> timedelta:
    days, seconds, microseconds = map(int, text.split(" "))
    return timedelta(days, seconds, microseconds)


#: Types whose values JSON has; not all values of str.
_PLAIN = {int, float, bool, type(None)}
_CONTAINERS: dict[str, Callable[[Any], object]] = {
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
#: Classes that the spider's modules define.
_KINDS = {"enum", "dataclass", "namedtuple"}
#: Instances of other classes derived from these are stored as their values.
_BASES: tuple[Any, ...] = (str, int, float, bytes, list, tuple, dict)
#: Type -> its tag, how it is written, how it is read.
_TEXTS: dict[type, tuple[str, Callable[[Any], str], Callable[[str], object]]] = {
    bytes: ("bytes", lambda value: value.decode("latin-1"), _to_bytes),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: ("timedelta", _duration, _to_duration),
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", str, UUID),
    **{
        cls: (cls.__name__, str, cls)
        for cls in (PurePosixPath, PureWindowsPath, PosixPath, WindowsPath)
    },
}
_READERS = {tag: read for tag, _, read in _TEXTS.values()}
#: A dict of one item with such a key stands for a value of another type.
_TAGS = {*_READERS, *_CONTAINERS, *_KINDS}


# -- classes: only those that any process of the spider has imported --


def class_path(cls: type, spider: Spider | None) -> str:
    """Return the path of a class, for instance ``shop.items:Price``.

    Raises:
        ValueError: ``find_class`` would not find it.
    """
    path = f"{cls.__module__}:{cls.__qualname__}"
    if find_class(path, spider) is not cls:
        raise ValueError(f"class {shown(path, 60)} is another class than the value's")
    return path


def find_class(path: str, spider: Spider | None) -> type:
    """Return a class of requests of Scrapy, or one that a module of the spider has.

    The modules of a spider are those of its class and of the base classes. A module has the classes
    that it defines or imports, and those of the modules that it imports.

    Raises:
        ValueError: there is no such class.
    """
    module_name, _, names = path.partition(":")
    module = sys.modules.get(module_name)
    # No getattr, and no modules of other types: theirs may import something.
    scope: Mapping[str, object] = vars(module) if type(module) is ModuleType else {}
    found: object = None
    for name in names.split("."):
        found = scope.get(name)
        scope = vars(found) if _is_class(found) else {}
    if not _is_class(found):
        raise ValueError(f"class {shown(path, 60)} is not imported")
    owners = [sys.modules.get(base.__module__) for base in type(spider).__mro__]
    if module_name.startswith("scrapy.http.") or module in owners:
        return found
    for owner in owners:
        if any(value is found or value is module for value in vars(owner).values()):
            return found
    raise ValueError(f"class {shown(path, 60)} is not imported by the spider's module")


def _is_class(value: object) -> TypeGuard[type]:
    return issubclass(type(value), type)


def _kind(cls: type) -> str:
    """Return the tag of a class's instances, "" if it has none."""
    if issubclass(cls, Enum):
        return "enum"
    if is_dataclass(cls):
        return "dataclass"
    return "namedtuple" if issubclass(cls, tuple) and hasattr(cls, "_make") else ""
