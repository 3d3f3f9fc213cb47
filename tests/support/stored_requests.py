"""A spider with all kinds of methods and classes, and checks of requests stored as JSON."""

import dataclasses
import enum
import functools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
from scrapy import Request, Spider

from scrapy_bloom.crawl.request_codec import MAX_LENGTH, dump, load
from scrapy_bloom.crawl.request_values import UnstorableError

URL = "https://example.com/page?q=1"
Method = Callable[..., Any]


def renamed(method: Method) -> Method:
    def wrapper(*args: Any) -> Any:
        return method(*args)

    return wrapper


class Meta(type(Spider)):  # type: ignore[misc]
    def of_the_metaclass(cls) -> None:
        pass


class Pages(Spider, metaclass=Meta):
    name = "pages"
    number = 1
    touched = False

    def parse(self, response: Any, **kwargs: Any) -> None:
        pass

    def failed(self, failure: Any) -> None:
        pass

    alias = failed

    @renamed
    def decorated(self, response: Any) -> None:
        pass

    def __private(self, response: Any) -> None:
        pass

    private = property(lambda self: self.__private)

    @staticmethod
    def static(response: Any) -> None:
        pass

    @classmethod
    def of_the_class(cls, response: Any) -> None:
        pass

    @property
    def tempting(self) -> Method:
        type(self).touched = True
        return self.parse

    partial = functools.partialmethod(parse, page=1)

    async def start(self) -> AsyncIterator[Any]:
        """Overrides what Scrapy runs: it is no callback."""
        yield Request(URL)

    def start_requests(self) -> Any:
        """Is run by Scrapy before 2.19, or by ``start``."""

    def closed(self, reason: str) -> None:
        """Is called by ``Spider.close``."""

    def spider_idle(self, spider: Spider) -> None:
        """Is named like the signal it is connected to."""


SPIDER, OTHER = Pages(), Pages()

# -- classes of requests --


class TokenRequest(Request):
    """Names what it takes in ``attributes``, as Scrapy's documentation asks for."""

    attributes = (*Request.attributes, "token")

    def __init__(self, *args: Any, token: object = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.token = token


class NeedyRequest(Request):
    def __init__(self, *args: Any, needed: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class ChangingRequest(Request):
    def __init__(self, url: str, **kwargs: Any) -> None:
        super().__init__(f"{url}x", **kwargs)


class ScriptRequest(Request):
    """Keeps what it takes to itself, as scrapy-selenium's does."""

    def __init__(self, *args: Any, script: str = "", **kwargs: Any) -> None:
        self.script = script
        super().__init__(*args, **kwargs)


class FailingRequest(Request):
    attributes = (*Request.attributes, "failing")

    @property
    def failing(self) -> None:
        raise RuntimeError("broken property")


class Outer:
    class InnerRequest(Request):
        pass


# -- classes of values --


class Text(str):
    """Comes back as text, as lxml's strings do."""

    __slots__ = ()


class Colour(int, enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796
    BLUE = 2


class Size(enum.Enum):
    SMALL = ("s", 1)
    LARGE = ("l", 2)


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    ALL = READ | WRITE


class Boxed:
    class Colour(enum.Enum):
        RED = "red"


class Point(NamedTuple):
    x: object
    y: object = None


class Spot(Point):
    """Instances have a dict."""


@dataclass
class Price:
    amount: object
    currency: str = "EUR"
    kind: ClassVar[str] = "price"
    given: dataclasses.InitVar[object] = None


@dataclass(frozen=True, slots=True)
class Sealed:
    amount: object
    more: object = None


@dataclass(init=False)
class Raising:
    """Cannot be made by calling the class."""

    amount: object

    def __init__(self) -> None:
        raise AssertionError("__init__ was called")


@dataclass
class PriceError(Exception):
    amount: object = 1


def made(cls: Any, **state: Any) -> Any:
    value = object.__new__(cls)
    for name, item in state.items():
        object.__setattr__(value, name, item)
    return value


# -- checks --


def of(cls: Any) -> str:
    """Return a class as it is stored."""
    return f"{cls.__module__}:{cls.__qualname__}"


def sample(cls: type[Request] = Request, **arguments: Any) -> Request:
    return cls(URL, **arguments)


def stored(**fields: Any) -> str:
    return json.dumps({"url": URL, **fields})


def exact(value: Any) -> tuple[type, object]:
    """Return a value with the types of all its parts, so that 1, 1.0 and True differ."""
    cls: Any = str if isinstance(value, Text) else type(value)
    parts: object
    if isinstance(value, dict):
        parts = [(exact(key), exact(item)) for key, item in dict.items(value)]
    elif isinstance(value, list | tuple):
        parts = [exact(item) for item in value]
    elif isinstance(value, set | frozenset):
        parts = sorted(repr(exact(item)) for item in value)
    elif dataclasses.is_dataclass(cls):
        parts = [exact(getattr(value, field.name)) for field in dataclasses.fields(cls)]
    else:
        parts = cls.__repr__(value)
    return cls, parts


def attributes(request: Request) -> dict[str, object]:
    return {name: exact(getattr(request, name)) for name in request.attributes}


def assert_stored(request: Request, spider: Spider = SPIDER) -> None:
    """A request comes back exactly."""
    text = dump(request, spider)
    assert text.isascii()
    assert "\n" not in text
    assert len(text) <= MAX_LENGTH
    again = load(text, spider)
    assert type(again) is type(request)
    assert attributes(again) == attributes(request)


def assert_refused(request: Request, reason: str) -> None:
    """A request cannot be stored."""
    with pytest.raises(UnstorableError, match=reason) as caught:
        dump(request, SPIDER)
    assert len(str(caught.value)) <= 200


def assert_bad(text: Any, reason: str) -> None:
    """A text is refused, with an error that is no other one."""
    with pytest.raises(ValueError, match=reason) as caught:
        load(text, SPIDER)
    assert type(caught.value) is ValueError
    assert len(str(caught.value)) <= 200
