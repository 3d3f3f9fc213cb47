"""Finds requests of one callback that share an object, so that no copy of it is made.

The requests of an item that several pages make up share a dict, for example, and the last one to
finish yields it. A copy of one of them, in another worker or after a kill, would share nothing. So
such requests aren't stored: their page waits for them, and those that have changed what they share
are settled together. Whether a request shares an object is known when the callback has ended.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from sys import maxsize
from typing import Any

from scrapy import Request

from scrapy_bloom.crawl.endings import Joint, Page
from scrapy_bloom.crawl.offers import Offers
from scrapy_bloom.crawl.ops import OpKind
from scrapy_bloom.crawl.queue import META
from scrapy_bloom.crawl.request_values import (
    MAX_DEPTH,
    is_immutable,
    value_of,
)

#: Keys of ``meta`` whose values Scrapy shares among requests, and doesn't change.
_SCRAPYS = {META, "handle_httpstatus_list", "redirect_urls", "redirect_reasons"}

#: Instances of classes in what is compared, at most. An item has fewer, a spider or a browser more.
MAX_INSTANCES = 1_000


class SharedObjects:
    """The objects in requests that one callback has yielded.

    Args:
        offers: follow these requests.
    """

    def __init__(self, offers: Offers) -> None:
        self._offers = offers
        #: Id of an object -> the object, so that it lives as long, and those who share it.
        self._joints: dict[int, tuple[object, Joint]] = {}
        self._requests: dict[Joint, list[Request]] = {}

    def add(self, request: Request) -> None:
        """Note a request; until the callback has ended, it may turn out to share an object."""
        values = [value for key, value in request.meta.items() if key not in _SCRAPYS]
        values += (value_of(request, "cb_kwargs") or {}).values()
        found = [*_objects(values)]
        if not found:
            return
        known = (self._joints[id(one)][1] for one in found if id(one) in self._joints)
        joint = next(known, None) or Joint(Page({}, maxsize), lambda: _content(found))
        for one in found:
            self._joints.setdefault(id(one), (one, joint))
        self._requests.setdefault(joint, []).append(request)
        self._offers.unsaved[request] = joint

    def decide(self, requests: Collection[Request]) -> None:
        """Let those requests be stored that share nothing and haven't been looked up."""
        for own in self._requests.values():
            if len(own) == 1 and own[0] in requests:
                self._offers.unsaved.pop(own[0], None)

    def close(self) -> None:
        """Store the others that share nothing, and let the rest end."""
        for joint, own in self._requests.items():
            if len(own) == 1:
                self._offers.store(own[0])
            joint.page.outcome = OpKind.FAIL if joint.page.error else OpKind.CONFIRM
            self._offers.pages.endings.finish(joint.page)


def _content(objects: Collection[object]) -> list[int]:
    """Return what objects hold, for comparison; [] if that is half of the crawl."""
    found, seen, instances = list[int](), dict[int, tuple[int, object]](), 0
    left = [*objects]
    while left:
        value = left.pop()
        if is_immutable(value):
            try:
                found.append(hash((type(value), value)))
            except TypeError:  # for example an Enum whose members are dataclasses
                found.append(hash(repr(value)))
            continue
        if id(value) in seen:
            found.append(seen[id(value)][0])
            continue
        seen[id(value)] = len(seen), value  # without it, another object could get its id
        if isinstance(value, dict):
            inner = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            inner = [*value]
        else:
            inner, instances = [object.__getstate__(value)], instances + 1
        if instances > MAX_INSTANCES:
            return []
        found.append(len(inner))
        left += inner
    return found


def _objects(values: Collection[Any], depth: int = 0) -> Iterator[object]:
    """Yield all mutable objects in values."""
    for value in values:
        if is_immutable(value) or depth > MAX_DEPTH:
            continue
        if not isinstance(value, tuple | frozenset):
            yield value
        if isinstance(value, dict):
            yield from _objects(value.values(), depth + 1)
        elif isinstance(value, list | tuple | set | frozenset):
            yield from _objects(value, depth + 1)
        elif is_dataclass(value):
            inner = [getattr(value, one.name, None) for one in fields(value)]
            yield from _objects(inner, depth + 1)
