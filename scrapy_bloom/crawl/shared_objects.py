"""Finds requests of one callback that share an object, so that no copy of it is made.

The requests of an item that several pages make up share a dict, for example, and the last one to
finish yields it. A copy of one of them, in another worker or after a kill, would share nothing. So
such requests aren't stored: their page waits for them, and those that have changed what they share
are settled together. Whether a request shares an object is known when the callback has ended.
"""

import re
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from sys import maxsize
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from scrapy import Request, Selector, Spider
from scrapy.http import Response

from scrapy_bloom.crawl.endings import Joint, Page
from scrapy_bloom.crawl.offers import Offers
from scrapy_bloom.crawl.ops import OpKind
from scrapy_bloom.crawl.queue import META
from scrapy_bloom.crawl.request_values import is_immutable, value_of

#: Keys of ``meta`` whose values Scrapy shares among requests, and doesn't change.
_SCRAPYS = {META, "handle_httpstatus_list", "redirect_urls", "redirect_reasons"}
_CALLABLES = FunctionType, MethodType, BuiltinFunctionType, partial
#: Objects that callbacks read, and don't make items of.
_READ_ONLY = Response, Selector, Spider, BuiltinFunctionType, re.Pattern
#: Instances of classes that are compared, at most. An item has fewer, a spider or a browser more.
MAX_INSTANCES = 1_000


class SharedObjects:
    """The objects in requests that one callback has yielded.

    Args:
        offers: follow these requests.
        request: whose callback it is.
        page: of that request; None if it has no claim.
    """

    def __init__(self, offers: Offers, request: Request, page: Page | None) -> None:
        self._offers, joints = offers, offers.pages.endings.joints
        claims = page.claims if page is not None else ()
        #: Ties that request to those of another callback that share its objects.
        self._own = next((joints[key] for key in claims if key in joints), None)
        #: Id of an object -> the object, so that it lives as long, its content when it was first
        #: yielded, and the joint of the first request with it.
        self._known: dict[int, tuple[object, list[object], Joint]] = {}
        #: Page that stands for requests that share objects -> these.
        self._groups: dict[Page, dict[Request, Joint]] = {}
        if self._own is not None:
            for one in _objects(_values(request)):
                self._known[id(one)] = one, _content(one), self._own

    def add(self, request: Request) -> None:
        """Note a request; until the callback has ended, it may turn out to share an object."""
        objects = _objects(_values(request))
        if not objects:
            return
        known = {id(one): self._known[id(one)] for one in objects if id(one) in self._known}
        page = self._page_of({joint.page: None for _, _, joint in known.values()})
        own = [known[id(one)][:2] if id(one) in known else (one, _content(one)) for one in objects]
        joint = Joint(page, lambda: any(_content(one) != before for one, before in own))
        for one, before in own:
            self._known.setdefault(id(one), (one, before, joint))
        self._offers.unsaved[request] = joint
        if self._own is None or page is not self._own.page:
            self._groups.setdefault(page, {})[request] = joint
        else:  # the callback's own request ends together with those that get its object
            joint.is_passed_on, self._own.has_changed = True, lambda: True

    def _page_of(self, pages: dict[Page, None]) -> Page:
        """Return the page that stands for requests that had some pages until now."""
        if self._own is not None and self._own.page in pages:
            return self._own.page
        page, *others = pages or (Page({}, maxsize),)
        for other in others:
            page.stand_for(other)
            page.waits, page.error = page.waits + other.waits, page.error or other.error
            self._groups[page] |= (joints := self._groups.pop(other))
            for joint in joints.values():
                joint.page = page
        return page

    def decide(self, requests: Collection[Request]) -> None:
        """Let those requests be stored that share nothing and haven't been looked up."""
        for request in self._alone():
            if request in requests:
                self._offers.unsaved.pop(request, None)

    def close(self) -> None:
        """Store the others that share nothing, and let the rest end."""
        for request in self._alone():
            self._offers.store(request)
        for page in self._groups:
            page.outcome = OpKind.FAIL if page.error else OpKind.CONFIRM
            self._offers.pages.endings.finish(page)

    def _alone(self) -> list[Request]:
        """Return the requests that share nothing."""
        return [request for group in self._groups.values() for request in group if len(group) == 1]


def _values(request: Request) -> list[object]:
    """Return all that a request takes to its callbacks."""
    values = [value for key, value in request.meta.items() if key not in _SCRAPYS]
    values += (value_of(request, "cb_kwargs") or {}).values()
    for call in (request.callback, request.errback):
        if call is not None and not isinstance(getattr(call, "__self__", None), Spider):
            values.append(call)
    return values


def _content(value: object) -> list[object]:
    """Return an object's content, for comparison; [] if it leads to half of the crawl."""
    found, seen, instances = list[object](), dict[int, tuple[int, object]](), 0
    left = [value]
    while left:
        value = left.pop()
        if is_immutable(value) or isinstance(value, _READ_ONLY):
            found.append(_mark(value))
            continue
        if id(value) in seen:
            found.append(seen[id(value)][0])
            continue
        seen[id(value)] = len(seen), value  # without it, another object could get its id
        inner = _inside(value)
        if inner is None:
            instances += 1
            state = object.__getstate__(value)
            if state is None:  # it's written in C, as a bytearray is, and hides its changes
                found.append(object())
            inner = [state]
        if instances > MAX_INSTANCES:
            return []
        found.append(len(inner))
        left += inner
    return found


def _mark(value: object) -> int:
    """Return a number that stands for a value that never changes."""
    try:
        return hash((type(value), value))
    except TypeError:  # for example an Enum whose members are dataclasses
        return hash(repr(value))


def _objects(values: Collection[Any]) -> list[object]:
    """Return all mutable objects in values."""
    found, seen, left = list[object](), dict[int, object](), [*values]
    while left:
        value = left.pop()
        if is_immutable(value) or isinstance(value, Spider) or id(value) in seen:
            continue
        seen[id(value)] = value
        if not isinstance(value, (tuple, frozenset, *_CALLABLES)):
            found.append(value)
        inner = _inside(value)
        if inner is None and is_dataclass(value):
            inner = [getattr(value, one.name, None) for one in fields(value)]
        left += inner or ()
    return found


def _inside(value: object) -> list[Any] | None:
    """Return the objects in a container or a callable; None for any other."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [*value]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__self__]
    if not isinstance(value, FunctionType):
        return None
    found = [value.__defaults__, value.__kwdefaults__]
    for cell in value.__closure__ or ():
        with suppress(ValueError):  # it's empty
            found.append(cell.cell_contents)
    return found
