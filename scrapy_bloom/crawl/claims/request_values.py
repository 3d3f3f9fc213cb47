"""Packs the values of a request's attributes into what JSON knows, and rebuilds them exactly.

A value of another type becomes a dict with one item: its tag and its content. Stored text is data:
unpacking it imports nothing, and runs no code of the classes that it names.
"""

import math
import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from json import JSONEncoder
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import MemberDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any, cast
from uuid import UUID, SafeUUID

from scrapy import Spider

from scrapy_bloom.bloom.errors import shown

#: Values of an attribute at most.
MAX_VALUES = 65_536
#: Containers within containers at most, in any attribute.
MAX_DEPTH = 32
#: Bits of an integer at most: Python reads and writes such numbers whatever its settings are.
MAX_BITS = 2048
#: JSON would read these two characters as one.
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")

#: Compact JSON.
to_json = JSONEncoder(separators=(",", ":")).encode


class Packer:
    """Packs the attributes of one request.

    ``is_certain`` turns False when only a trial can show that a value would come back unchanged.

    Args:
        spider: the spider whose modules name the classes that can be kept.
    """

    def __init__(self, spider: Spider | None) -> None:
        self.is_certain = True
        self._spider = spider
        self._name = ""
        self._count = 0

    def pack_each(self, values: dict[str, Any]) -> dict[str, object]:
        """Return values as what JSON knows.

        Raises:
            ValueError: one cannot be kept; the message names its attribute.
        """
        packed = {}
        for self._name, value in values.items():
            self._count = 0
            packed[self._name] = self._pack(value)
        return packed

    def _pack(self, value: Any, depth: int = 0) -> Any:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_VALUES:
            raise ValueError(f"{self._name} is nested too deeply or too large")
        cls = type(value)
        if cls is list:
            return [self._pack(item, depth + 1) for item in value]
        if cls is tuple:
            return {"tuple": [self._pack(item, depth + 1) for item in value]}
        if cls is dict:
            return self._pack_dict(value, depth + 1)
        if _is_scalar(value):
            return value
        if cls in _TEXTS:
            tag, write, _ = _TEXTS[cls]
            return {tag: self._pack(write(value), depth)}
        return self._pack_other(value, depth)

    def _pack_dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        items = [(self._pack_key(k, depth), self._pack(v, depth)) for k, v in value.items()]
        if all(type(key) is str for key, _ in items):
            packed = dict(items)
            if len(packed) == len(items) and not _is_tagged(packed):
                return packed
        return {"dict": items}

    def _pack_key(self, value: object, depth: int) -> Any:
        if type(value) not in _CERTAIN_KEYS:
            self.is_certain = False
        return self._pack(value, depth)

    def _pack_other(self, value: Any, depth: int) -> Any:
        cls = type(value)
        if kind := _kind(cls):
            return {kind: [class_path(cls, self._spider), self._state(kind, value, depth + 1)]}
        if cls is set or cls is frozenset:
            return {
                cls.__name__: sorted((self._pack_key(v, depth + 1) for v in value), key=to_json)
            }
        for base, copy in _BASES.items():
            if issubclass(cls, base) and type(plain := copy(value)) is not cls:
                return self._pack(plain, depth)
        raise unfit(self._name, value)

    def _state(self, kind: str, value: Any, depth: int) -> object:
        cls = type(value)
        if kind == "enum":
            name = value._name_
            if type(name) is str and _members(cls).get(name) is value:
                return name
        elif kind == "namedtuple":
            if len(names := _field_names(cls)) == tuple.__len__(value) and not held(value):
                return [self._pack(item, depth) for item in tuple.__iter__(value)]
        else:
            self.is_certain = False
            state = held(value)
            if state.keys() == set(names := _field_names(cls)):
                return {name: self._pack(state[name], depth) for name in names}
        raise unfit(self._name, value)


class Unpacker:
    """Rebuilds the values that a ``Packer`` packed.

    Args:
        spider: the spider whose modules name the classes that may be stored.
    """

    def __init__(self, spider: Spider | None) -> None:
        self._spider = spider
        #: Keys within keys that are being rebuilt.
        self._keys = 0

    def unpack(self, value: Any, depth: int = 0) -> Any:
        """Return a value as it was.

        Raises:
            Exception: of any class; nothing was packed so.
        """
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        if type(value) is list:
            return [self.unpack(item, depth + 1) for item in value]
        if type(value) is dict:
            if _is_tagged(value):
                return self._untag(*next(iter(value.items())), depth + 1)
            return {key: self.unpack(item, depth + 1) for key, item in value.items()}
        if not _is_scalar(value):
            raise ValueError("it holds a number out of bounds")
        return value

    def _untag(self, tag: str, content: Any, depth: int) -> Any:
        if tag in _READERS and type(content) is str:
            return _READERS[tag](content)
        if tag not in _READERS and type(content) is list:
            if tag == "tuple":
                return tuple([self.unpack(item, depth) for item in content])
            if tag == "dict":
                return {self._key(k, depth): self.unpack(v, depth) for k, v in content}
            if tag in _SETS:
                return _SETS[tag]([self._key(item, depth) for item in content])
            path, state = content
            return self._instance(tag, find_class(path, self._spider), state, depth)
        raise ValueError(f"its {tag} is of a wrong type")

    def _key(self, value: Any, depth: int) -> Any:
        self._keys += 1
        key = self.unpack(value, depth)
        self._keys -= 1
        return key

    def _instance(self, kind: str, cls: type, state: Any, depth: int) -> object:
        if _kind(cls) != kind:
            raise ValueError(f"{kind} cannot hold an instance of {cls.__name__}")
        if self._keys and _has_own_hash(cls):
            raise ValueError(f"{cls.__name__} has a __hash__ or __eq__ of its own")
        if kind == "enum":
            if type(state) is str and state in (members := _members(cls)):
                return members[state]
        elif kind == "namedtuple":
            if type(state) is list and len(state) == len(_field_names(cls)):
                values = [self.unpack(item, depth) for item in state]
                return cast("object", tuple.__new__(cls, values))
        elif type(state) is dict and state.keys() == set(names := _field_names(cls)):
            made: object = object.__new__(cls)  # it refuses subclasses of str, Exception and others
            for name in names:
                if _has_setter(static_attribute(cls, name)):
                    raise ValueError(f"{cls.__name__} has a field that is a property")
                object.__setattr__(made, name, self.unpack(state[name], depth))
            return made
        raise ValueError(f"its {kind} is not what {cls.__name__} holds")


def unfit(name: str, value: object) -> ValueError:
    """Return the error for a value that cannot be kept."""
    # Not the value: it may be secret.
    return ValueError(f"{name} holds a value of type {type(value).__name__} that cannot be kept")


def latin(text: str) -> bytes:
    """Return the bytes that were stored as text, a character each."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("it holds bytes beyond 255") from None


def held(value: object, known: type = object) -> dict[str, object]:
    """Return what an instance has in its dict, and in the slots that ``known`` has not."""
    state = {}
    with suppress(AttributeError):  # it has no dict
        state.update(object.__getattribute__(value, "__dict__"))
    for cls in set(type(value).__mro__) - set(known.__mro__):
        for name, slot in vars(cls).items():
            if type(slot) is MemberDescriptorType:
                with suppress(AttributeError):  # it is empty
                    state[name] = slot.__get__(value)
    return state


def static_attribute(cls: type, name: str) -> Any:
    """Return an attribute of a class, None if it has none. No getattr: that may run code."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def _is_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and not _TAGS.isdisjoint(value)


def _is_scalar(value: object) -> bool:
    if type(value) is str:
        return value.isascii() or not _SURROGATE_PAIR.search(value)
    if type(value) is int:
        return value.bit_length() <= MAX_BITS
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) is bool


# -- types that are stored as text --


def _moment(value: datetime | time) -> str:
    text = value.isoformat()
    # Compared, because the text has no fold and no name of a time zone, and Python 3.11 misreads
    # some offsets of less than a second.
    is_readable = value.tzinfo is None or type(value.tzinfo) is timezone
    if not is_readable or repr(type(value).fromisoformat(text)) != repr(value):
        raise ValueError("a time with a fold or such a time zone cannot be kept")
    return text


def _duration(value: timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


def _to_duration(text: str) -> timedelta:
    days, seconds, microseconds = map(int, text.split(" "))
    return timedelta(days, seconds, microseconds)


def _uuid(value: UUID) -> str:
    return f"{value} {value.is_safe.name}"


def _to_uuid(text: str) -> UUID:
    number, safety = text.split(" ")
    return UUID(number, is_safe=SafeUUID[safety])


def _path(value: PurePath) -> str:
    text = str(value)
    if type(value)(text).parts != value.parts:  # "./c:" in Windows, before Python 3.12
        raise ValueError("a path that its text does not name cannot be kept")
    return text


#: Type -> its tag, how it is written, how it is read.
_TEXTS: dict[type, tuple[str, Callable[[Any], str], Callable[[str], object]]] = {
    bytes: ("bytes", lambda value: value.decode("latin-1"), latin),
    datetime: ("datetime", _moment, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", _moment, time.fromisoformat),
    timedelta: ("timedelta", _duration, _to_duration),
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", _uuid, _to_uuid),
    **{
        cls: (cls.__name__, _path, cls)
        for cls in (PurePosixPath, PureWindowsPath, PosixPath, WindowsPath)
    },
}
_READERS = {tag: read for tag, _, read in _TEXTS.values()}
_SETS: dict[str, Callable[[list[Any]], object]] = {"set": set, "frozenset": frozenset}
#: A dict of one item with such a key stands for a value of another type.
_TAGS = {*_READERS, *_SETS, "tuple", "dict", "enum", "dataclass", "namedtuple"}
#: As keys they stay as different as they are.
_CERTAIN_KEYS = {str, int, float, bool, type(None), bytes}
#: Type -> what copies an instance of a subclass, without the methods of the subclass.
_BASES: dict[type, Callable[[Any], object]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: (*tuple.__iter__(value),),
    OrderedDict: lambda value: dict(OrderedDict.items(value)),  # dict's order is another
    dict: lambda value: dict(dict.items(value)),
}


# -- classes: only through the modules of the spider, and only by what vars() shows --


def class_path(cls: type, spider: Spider | None) -> str:
    """Return the path of a class, for instance ``shop.items:Price``.

    Raises:
        ValueError: ``find_class`` would not find it.
    """
    path = f"{cls.__module__}:{cls.__qualname__}"
    if find_class(path, spider) is not cls:
        raise ValueError(f"class {shown(path, 60)} is another class than the value's")
    return path


def find_class(path: object, spider: Spider | None) -> type:
    """Return a class that the spider's module, or that of a base class, defines or imports.

    Another process that runs this spider has it, too.
    """
    cls = imported_class(path)
    module = sys.modules[str(path).partition(":")[0]]
    owners = [sys.modules.get(base.__module__) for base in type(spider).__mro__]
    if any(owner is module for owner in owners):
        return cls
    for owner in owners:
        held_there = [*vars(owner).values()] if type(owner) is ModuleType else []
        if any(value is cls or value is module for value in held_there):
            return cls
    raise ValueError(f"class {shown(path, 60)} is not imported by the spider's module")


def imported_class(path: object) -> type:
    """Return a class of a module that is imported already."""
    module_name, _, names = path.partition(":") if type(path) is str else ("", "", "")
    module = sys.modules.get(module_name)
    # No getattr, and no modules of other types: theirs may import something.
    scope = vars(module) if type(module) is ModuleType else {}
    found: object = None
    for name in names.split("."):
        found = scope.get(name)
        scope = vars(found) if issubclass(type(found), type) else {}
    if issubclass(type(found), type):
        return cast("type", found)
    raise ValueError(f"class {shown(path, 60)} is not imported")


def _kind(cls: type) -> str:
    """Return the tag of a class's instances, "" if it has none."""
    if issubclass(cls, Enum):
        return "enum"
    if static_attribute(cls, "__dataclass_fields__") is not None:
        return "dataclass"
    is_named = issubclass(cls, tuple) and type(static_attribute(cls, "_fields")) is tuple
    return "namedtuple" if is_named else ""


def _members(cls: type) -> dict[str, object]:
    return cast("dict[str, object]", static_attribute(cls, "_member_map_"))


def _field_names(cls: Any) -> list[str]:
    if issubclass(cls, tuple):
        return list(static_attribute(cls, "_fields"))
    return [field.name for field in fields(cls)]


def _has_own_hash(cls: type) -> bool:
    """Whether to hash or compare instances runs Python code, other than Enum's."""
    methods = (static_attribute(cls, name) for name in ("__hash__", "__eq__"))
    return any(type(m) is not WrapperDescriptorType and m is not _ENUM_HASH for m in methods)


_ENUM_HASH = vars(Enum)["__hash__"]


def _has_setter(attribute: object) -> bool:
    is_slot = type(attribute) is MemberDescriptorType
    return not is_slot and static_attribute(type(attribute), "__set__") is not None
