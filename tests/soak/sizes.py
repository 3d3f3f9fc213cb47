"""How many entries the containers of scrapy-bloom have, whatever their names."""

from array import array
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

PACKAGE = "scrapy_bloom"
CONTAINERS = (dict, set, list, deque, WeakKeyDictionary, WeakSet, WeakValueDictionary)
#: Containers up to this size may have objects with further containers.
SMALL = 100


def container_sizes(root: object) -> dict[str, int]:
    """Return the number of entries of each container that objects of the package hold.

    Args:
        root: the object to begin with. Attributes, methods and partials lead to others.
    """
    sizes: dict[str, int] = {}
    seen, waiting = {id(root)}, [root]
    while waiting:
        for name, value in _parts(waiting.pop()):
            if id(value) in seen or isinstance(value, (str, bytes, int, float, array, type)):
                continue
            seen.add(id(value))
            if isinstance(value, CONTAINERS):
                sizes[name] = sizes.get(name, 0) + len(value)
            if not isinstance(value, CONTAINERS) or len(value) <= SMALL:
                waiting.append(value)
    return sizes


def _parts(whole: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with names."""
    if isinstance(whole, dict):
        yield from (("values of dicts", value) for value in list(whole.values()))
    elif isinstance(whole, (list, deque)):
        yield from (("items of lists", value) for value in list(whole))
    elif isinstance(whole, MethodType):
        yield "self", whole.__self__
    elif isinstance(whole, partial):
        yield from (("arguments", value) for value in (whole.func, *whole.args))
    elif type(whole).__module__.startswith(PACKAGE):
        name = type(whole).__name__
        slots = [slot for kind in type(whole).__mro__ for slot in getattr(kind, "__slots__", ())]
        held = {slot: getattr(whole, slot, None) for slot in slots}
        held |= getattr(whole, "__dict__", {})
        yield from ((f"{name}.{attribute}", value) for attribute, value in held.items())
