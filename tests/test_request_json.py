"""Pending requests as text: what is kept comes back exactly, and bad text is refused."""

import enum
import functools
import json
import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import Headers, JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK

from scrapy_bloom.crawl.request_json import (
    MAX_BITS,
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_PRIORITY,
    NotKeepableError,
    dump,
    load,
)

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


SPIDER = Pages()
OTHER = Pages()


class TokenRequest(Request):
    """Says in ``attributes`` what it takes, as Scrapy's documentation asks for."""

    attributes = (*Request.attributes, "token")

    def __init__(self, *args: Any, token: object = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.token = token


class SlottedRequest(Request):
    """Has arguments of its own that ``attributes`` does not name."""

    __slots__ = ("empty", "page")

    def __init__(self, *args: Any, page: object = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.page = page


class PlainRequest(Request):
    pass


class NeedyRequest(Request):
    def __init__(self, *args: Any, needed: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class ChangingRequest(Request):
    def __init__(self, url: str, **kwargs: Any) -> None:
        super().__init__(f"{url}x", **kwargs)


class GreedyRequest(Request):
    """Changes what it is given."""

    def __init__(self, url: str, **kwargs: Any) -> None:
        if "meta" in kwargs:
            kwargs["meta"]["seen"] = True
        super().__init__(url, **kwargs)


class FailingRequest(Request):
    attributes = (*Request.attributes, "failing")

    @property
    def failing(self) -> None:
        raise RuntimeError("broken property")


class RaisingRequest(Request):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise KeyError("missing")


class Outer:
    class InnerRequest(Request):
        pass


class Text(str):
    __slots__ = ()


class Colour(int, enum.Enum):
    RED = 1


def sample(cls: type[Request] = Request, **arguments: Any) -> Request:
    return cls(URL, **arguments)


def exact(value: object) -> object:
    """Return a value with the types of all its parts, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        parts = dict.items(value)
        return type(value), [(exact(key), exact(item)) for key, item in parts]
    if isinstance(value, list | tuple):
        return type(value), [exact(item) for item in value]
    return type(value), repr(value) if isinstance(value, float) else value


def attributes(request: Request) -> dict[str, object]:
    return {name: exact(getattr(request, name)) for name in request.attributes}


def assert_kept(request: Request, spider: Spider = SPIDER) -> None:
    text = dump(request, spider)
    assert text.isascii()
    assert "\n" not in text
    assert len(text) <= MAX_LENGTH
    again = load(text, spider)
    assert type(again) is type(request)
    assert attributes(again) == attributes(request)
    assert again.headers.encoding == request.headers.encoding


def assert_refused(request: Request, reason: str, spider: Spider | None = SPIDER) -> None:
    with pytest.raises(NotKeepableError, match=reason) as caught:
        dump(request, spider)
    assert len(str(caught.value)) <= 200


def stored(**fields: object) -> str:
    return json.dumps({"url": URL, **fields})


def assert_bad(text: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        load(text, SPIDER)
    assert type(caught.value) is ValueError
    assert len(str(caught.value)) <= 200


# -- strategies --

ours = st.sampled_from(["bytes", "tuple", "dict"])
# Any characters: surrogates too, except that two in a row are one character in JSON.
texts = st.text(
    st.characters(exclude_characters=[chr(code) for code in range(0xDC00, 0xE000)]), max_size=8
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**MAX_BITS) + 1, 2**MAX_BITS - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["\udc00", "a\udfff", "\udc00\ud800"])
    | st.binary(max_size=8)
)
keys = scalars | ours | st.tuples(scalars, scalars)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(texts | ours, inner, max_size=3)
        | st.dictionaries(ours, inner, max_size=1)
    ),
    max_leaves=10,
)
dicts = st.dictionaries(texts | ours | st.just("depth"), values, max_size=4)
header_names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,10}", fullmatch=True)
methods = st.sampled_from([None, SPIDER.parse, SPIDER.failed, SPIDER.decorated, NO_CALLBACK])
arguments = st.fixed_dictionaries(
    {},
    optional={
        "callback": methods,
        "errback": methods,
        "method": st.sampled_from(["GET", "POST", "HEAD", "m-search"]),
        "headers": st.dictionaries(header_names, st.lists(st.binary(max_size=9), max_size=3)),
        "body": st.binary(max_size=30) | st.text(st.characters(codec="utf-8")),
        "cookies": dicts | st.lists(dicts, min_size=1, max_size=2),
        "meta": dicts,
        "cb_kwargs": dicts,
        "encoding": st.sampled_from(["utf-8", "UTF-8", "cp1252", "gb18030"]),
        "priority": st.integers(-MAX_PRIORITY, MAX_PRIORITY),
        "dont_filter": st.booleans(),
        "flags": st.lists(texts, max_size=2),
    },
)
encodable = st.text(st.characters(codec="cp1252", min_codepoint=32), max_size=10)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | ours, inner, max_size=3)
        | st.dictionaries(ours, inner, max_size=1)
    ),
    max_leaves=8,
)


# -- what is kept --


@given(encodable, arguments.filter(lambda chosen: "body" not in chosen or "encoding" not in chosen))
def test_a_request_comes_back_exactly(path: str, chosen: dict[str, Any]) -> None:
    assert_kept(Request(f"https://example.com/{path}?{path}", **chosen))


@given(dicts)
def test_an_argument_that_a_class_names_comes_back(token: dict[object, object]) -> None:
    assert_kept(sample(TokenRequest, token=token))


@pytest.mark.parametrize(
    "request_",
    [
        sample(FormRequest, formdata={"q": ["ä", "b"]}),
        sample(FormRequest, formdata={"q": "x"}, method="GET"),
        sample(JsonRequest, data={"ä": [1]}, dumps_kwargs={"ensure_ascii": False}),
        sample(JsonRequest, headers={"Accept": "*/*"}, callback=SPIDER.parse),
        sample(XmlRpcRequest, params=(1, "ä"), methodname="get", encoding="cp1252"),
        sample(XmlRpcRequest, params=(), methodname="get", dont_filter=False, method="PUT"),
        sample(PlainRequest, meta={"depth": 3}),
        sample(SlottedRequest),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_classes_of_requests_come_back(request_: Request) -> None:
    assert_kept(request_)


def test_restored_callbacks_are_methods_of_the_spider_that_restores() -> None:
    request = load(dump(sample(callback=SPIDER.parse), SPIDER), OTHER)
    assert request.callback == OTHER.parse
    assert request.callback != SPIDER.parse


@pytest.mark.parametrize("method", [SPIDER.alias, SPIDER.decorated, SPIDER.private])
def test_methods_under_another_name_come_back(method: Method) -> None:
    assert_kept(sample(callback=method))


def test_a_callback_like_any_other_object_comes_back_in_a_spider_that_hides_it() -> None:
    spider = Pages()
    spider.parse = spider.failed  # type: ignore[method-assign]
    assert_kept(sample(callback=spider.parse), spider)


def test_no_spider_is_needed_without_callbacks() -> None:
    assert dump(sample(), None) == f'{{"url":"{URL}"}}'


def test_defaults_are_left_out() -> None:
    text = dump(sample(callback=SPIDER.parse, meta={"depth": 3}), SPIDER)
    assert text == f'{{"url":"{URL}","callback":"parse","meta":{{"depth":3}}}}'


def test_the_deepest_nesting_comes_back() -> None:
    value: object = {"tuple": 1}
    for _ in range(MAX_DEPTH - 2):  # within that dict and meta
        value = [value]
    assert_kept(sample(meta={"a": value}))
    assert_refused(sample(meta={"a": [value]}), "meta is nested too deeply")


def test_the_longest_text_comes_back() -> None:
    room = MAX_LENGTH - len(dump(sample(meta={"a": ""}), None))
    assert_kept(sample(meta={"a": "x" * room}))
    assert_refused(sample(meta={"a": "x" * (room + 1)}), "more than 65,536 characters")


def test_a_class_that_changes_its_arguments_does_not_change_the_defaults() -> None:
    load(stored(**{"class": f"{__name__}.GreedyRequest"}), SPIDER)
    assert load(stored(), SPIDER).meta == {}


# -- what is refused --


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        object(),
        math.nan,
        math.inf,
        2**MAX_BITS,
        bytearray(b"x"),
        "\ud83d\ude00",
        Text("a"),
        Colour.RED,
        OrderedDict(a=1),
        defaultdict(list),
        Headers(),
        SPIDER.parse,
        range(2),
        {Text("a"): 1},
        {Colour.RED: 1},
        {frozenset(): 1},
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("where", ["meta", "cb_kwargs", "cookies"])
def test_values_of_other_types_are_refused(where: str, value: object) -> None:
    assert_refused(sample(**{where: {"a": [value]}}), f"{where} holds a value of type")


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value += [value, value]
    assert_refused(sample(meta={"a": value}), "meta is nested too deeply or too large")


def test_a_value_that_grows_when_written_is_refused() -> None:
    value: list[object] = []
    for _ in range(MAX_DEPTH - 2):
        value = [value, value]
    assert_refused(sample(meta={"a": value}), "meta is nested too deeply or too large")


def free(response: Any) -> None:
    pass


@pytest.mark.parametrize(
    "function",
    [
        lambda response: None,
        free,
        OTHER.parse,
        SPIDER.static,
        SPIDER.of_the_class,
        SPIDER.partial,
        functools.partial(SPIDER.parse),
        MethodType(free, SPIDER),
        MethodType(functools.partial(free), SPIDER),
        Pages.of_the_metaclass,
    ],
)
@pytest.mark.parametrize("name", ["callback", "errback"])
def test_functions_that_are_no_methods_of_the_spider_are_refused(
    name: str, function: Method
) -> None:
    assert_refused(sample(**{name: function}), f"{name} is not a method of the spider")


def test_a_callback_without_a_spider_is_refused() -> None:
    assert_refused(sample(callback=SPIDER.parse), "callback is not a method", spider=None)


@pytest.mark.parametrize("url", ["ftp://a/b", "data:,x", "about:blank", "s3://b/k", "file:///x"])
def test_other_schemes_are_refused(url: str) -> None:
    assert_refused(Request(url), "url is of a wrong type or out of bounds")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", True),
        ("priority", MAX_PRIORITY + 1),
        ("dont_filter", 1),
        ("method", "get"),
        ("method", "GET / HTTP/1.1"),
        ("method", None),
        ("flags", [1]),
        ("flags", ("a",)),
        ("cookies", ({"name": "a"},)),
        ("cookies", [("a", "b")]),
        ("callback", 1),
        ("headers", Headers({"a": "ä"}, encoding="latin-1")),
        ("_body", bytearray(b"x")),
        ("_encoding", "no-encoding"),
        ("_encoding", Text("utf-8")),
    ],
)
def test_attributes_that_were_changed_to_other_values_are_refused(name: str, value: object) -> None:
    request = sample()
    setattr(request, name, value)
    assert_refused(request, name.strip("_"))


@pytest.mark.parametrize("name", ["caf\xc3\xa9s".encode("latin-1"), b"lower"])
def test_headers_that_scrapy_would_spell_otherwise_are_refused(name: bytes) -> None:
    request = sample()
    dict.__setitem__(request.headers, name, [b"x"])
    assert_refused(request, "headers have a name that Scrapy spells otherwise")


def test_headers_that_are_not_bytes_are_refused() -> None:
    request = sample()
    dict.__setitem__(request.headers, b"A", ["x"])
    assert_refused(request, "headers holds a value of type str")


def test_headers_that_a_class_would_add_again_are_refused() -> None:
    request = sample(JsonRequest)
    del request.headers["Accept"]
    assert_refused(request, "headers would not come back unchanged")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (sample(SlottedRequest, page=2), "page would not come back"),
        (sample(SlottedRequest, page=True), "page would not come back"),
        (sample(SlottedRequest, page=SPIDER), "page holds a value of type Pages"),
        (sample(TokenRequest, token={1}), "token holds a value of type set"),
        (sample(JsonRequest, dumps_kwargs={"cls": json.JSONEncoder}), "dumps_kwargs holds"),
        (sample(encoding="utf-16"), "url is not as Scrapy writes it"),  # it starts with a mark
        (sample(NeedyRequest, needed="x"), "TypeError.*needed"),
        (sample(ChangingRequest), "url is not as Scrapy writes it"),
        (sample(GreedyRequest), "meta would not come back"),
        (sample(FailingRequest), "broken property"),
        (sample(Outer.InnerRequest), "InnerRequest' is no imported class"),
    ],
)
def test_a_request_that_its_class_does_not_restore_is_refused(
    request_: Request, reason: str
) -> None:
    assert_refused(request_, reason)


def test_an_attribute_of_the_users_own_is_refused() -> None:
    request = sample(PlainRequest)
    request.note = "x"  # type: ignore[attr-defined]
    assert_refused(request, "note would not come back unchanged")


def test_a_class_behind_the_name_of_another_is_refused() -> None:
    hidden = type("PlainRequest", (Request,), {"__module__": __name__, "__slots__": ()})
    assert_refused(sample(hidden), "class would not come back unchanged")


# -- stored text that is not good --


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "ASCII text"),
        (b"{}", "ASCII text"),
        ("é", "ASCII text"),
        (stored(body="x" * MAX_LENGTH), "more than 65,536 characters"),
        ("", "JSONDecodeError"),
        ("{", "JSONDecodeError"),
        ("[" * 60_000, "RecursionError|JSONDecodeError|nested"),
        ("null", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{}", "^url is of a wrong type"),
        ('{"url":"https://a/","meta":{"a":' + "[" * 40 + "]" * 40 + "}}", "nested too deeply"),
        (stored(meta={"a": math.nan}), "number out of bounds"),
        ('{"url":"https://a/","meta":{"a":1e999}}', "out of bounds"),
        (stored(meta={"a": 2**MAX_BITS}), "out of bounds"),
        (stored(extra=1), "'extra' is unknown"),
        (stored(_class="scrapy.Request"), "'_class' is unknown"),
        (stored(url=1), "^url"),
        (stored(url="example.com"), "^url"),
        (stored(url="javascript:x"), "^url"),
        (stored(url="file:///etc/passwd"), "^url"),
        (stored(url=" https://a/"), "^url"),
        (stored(url="https://a/" + " " * 60_000), "not as Scrapy writes it"),
        (stored(url="https://["), "ValueError|Invalid|IPv6"),
        (stored(method=1), "^method"),
        (stored(method="GET\r\nX: y"), "^method"),
        (stored(method="GET\n"), "^method"),
        (stored(method="get"), "^method"),
        (stored(headers={}), "^headers"),
        (stored(headers=[[]]), "^headers"),
        (stored(headers=["ab"]), "^headers"),
        (stored(headers=[["a", 1]]), "^headers"),
        (stored(headers=[["a", "\u1234"]]), "bytes beyond 255"),
        (stored(body=["x"]), "^body"),
        (stored(body="\ud800"), "bytes beyond 255"),
        (stored(cookies="a=b"), "^cookies"),
        (stored(cookies=["a"]), "^cookies"),
        (stored(meta=[]), "^meta"),
        (stored(meta={"tuple": []}), "^meta"),
        (stored(meta=None), "^meta"),
        (stored(cb_kwargs=1), "^cb_kwargs"),
        (stored(encoding=None), "^encoding"),
        (stored(encoding="no-encoding"), "^encoding"),
        (stored(encoding="rot13"), "^encoding"),
        (stored(encoding="\0"), "^encoding"),
        (stored(priority="1"), "^priority"),
        (stored(priority=True), "^priority"),
        (stored(priority=1.0), "^priority"),
        (stored(priority=-MAX_PRIORITY - 1), "^priority"),
        (stored(dont_filter=0), "^dont_filter"),
        (stored(flags="a"), "^flags"),
        (stored(flags=[1]), "^flags"),
        (stored(more=[]), "^more"),
        (stored(more={"token": 1}), "^more"),
        (stored(more={"url": URL}), "^more"),
        (stored(more={"url": URL}, **{"class": f"{__name__}.TokenRequest"}), "^more"),
        (stored(meta={"a": {"bytes": 1}}), "bytes is of a wrong type"),
        (stored(meta={"a": {"bytes": "\u1234"}}), "bytes beyond 255"),
        (stored(meta={"a": {"tuple": {}}}), "tuple is of a wrong type"),
        (stored(meta={"a": {"dict": {}}}), "dict is of a wrong type"),
        (stored(meta={"a": {"dict": [1]}}), "TypeError"),
        (stored(meta={"a": {"dict": [[1, 2, 3]]}}), "too many values"),
        (stored(meta={"a": {"dict": [[[], 1]]}}), "unhashable"),
    ],
)
def test_bad_text_is_refused_with_a_reason(text: object, reason: str) -> None:
    assert_bad(text, reason)


@pytest.mark.parametrize("name", ["callback", "errback"])
@pytest.mark.parametrize(
    "value",
    [
        True,
        1,
        "",
        ["parse"],
        "a.b",
        "no_such_method",
        "name",
        "number",
        "logger",
        "static",
        "of_the_class",
        "of_the_metaclass",
        "partial",
        "tempting",
        "__class__",
        "__reduce__",
        "mro",
    ],
)
def test_what_is_no_method_of_the_spider_is_no_callback(name: str, value: object) -> None:
    assert_bad(stored(**{name: value}), f"^{name}")


def test_no_property_of_the_spider_is_evaluated() -> None:
    class Tempted(Pages):
        pass

    spider = Tempted()
    assert_refused(sample(callback=OTHER.parse), "callback", spider)
    assert_refused(sample(callback=MethodType(free, spider)), "callback", spider)
    with pytest.raises(ValueError, match="callback 'tempting'"):
        load(stored(callback="tempting"), spider)
    assert not Tempted.touched


class Lazy(ModuleType):
    """A module that would import something when an attribute is read."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)


@pytest.mark.parametrize(
    "name",
    [
        None,
        1,
        ["scrapy.Request"],
        "",
        "Request",
        ".Request",
        "scrapy.",
        "scrapy.Spider",
        "scrapy.http.Response",
        "scrapy.signals",
        "scrapy.__version__",
        "builtins.eval",
        "os.system",
        "typing.Any",
        "antigravity.Request",
        "lazy_module.Request",
        "no_module.Request",
        "none_module.Request",
        "scrapy.http.request.Request.copy",
        f"{__name__}.SPIDER",
        f"{__name__}.Outer.InnerRequest",
    ],
)
def test_what_is_no_imported_class_of_requests_is_refused(
    name: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    monkeypatch.setitem(sys.modules, "none_module", None)
    before = set(sys.modules)
    assert_bad(stored(**{"class": name}), "is no imported class of requests")
    assert set(sys.modules) == before


def test_a_module_is_not_asked_for_attributes_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def imports(name: str) -> object:
        raise AssertionError(name)

    module = ModuleType("asked")
    module.__getattr__ = imports  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "asked", module)
    assert_bad(stored(**{"class": "asked.Request"}), "is no imported class of requests")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NeedyRequest", "TypeError.*needed"),
        ("ChangingRequest", "url is not as Scrapy writes it"),
        ("RaisingRequest", "KeyError"),
    ],
)
def test_a_class_that_fails_is_an_error_of_the_stored_request(name: str, reason: str) -> None:
    assert_bad(stored(**{"class": f"{__name__}.{name}"}), reason)


# A good request with everything in it, to be damaged.
RICH = json.loads(
    dump(
        sample(
            TokenRequest,
            callback=SPIDER.parse,
            errback=NO_CALLBACK,
            method="POST",
            headers={"A": ["b", "c"]},
            body=b"\xff",
            cookies=[{"name": "a", "value": b"b"}],
            meta={"a": (1, {2: [b"x"]}), "b": {"tuple": 1.5}},
            cb_kwargs={"page": 2},
            encoding="cp1252",
            priority=-1,
            dont_filter=True,
            flags=["x"],
            token=("t",),
        ),
        SPIDER,
    )
)


def loads_or_is_refused(text: str) -> None:
    try:
        request = load(text, SPIDER)
    except ValueError:
        pass
    else:
        assert request.url.startswith(("http://", "https://"))
        for method in (request.callback, request.errback):
            good = getattr(method, "__self__", None) is SPIDER
            assert good or method is None or method is NO_CALLBACK


@given(json_values)
def test_any_json_is_a_request_or_refused(value: object) -> None:
    loads_or_is_refused(json.dumps(value))


@given(st.text(max_size=50))
def test_any_text_is_a_request_or_refused(text: str) -> None:
    loads_or_is_refused(text)


@given(st.sampled_from(sorted(RICH)), json_values)
def test_any_value_of_a_field_is_good_or_refused(name: str, value: object) -> None:
    loads_or_is_refused(json.dumps({**RICH, name: value}))


@given(st.data())
def test_a_text_with_a_piece_replaced_is_a_request_or_refused(data: st.DataObject) -> None:
    text = json.dumps(RICH)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    piece = data.draw(st.text('{}[]",:\\u0189abtuple e-.', max_size=6) | st.text(max_size=3))
    loads_or_is_refused(text[:start] + piece + text[end:])
