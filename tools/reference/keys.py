"""docs/reference/keys.md."""

import inspect
import re

from scrapy_bloom.bloom.model.keys import Keys
from tools.reference.markdown import code, document, table

INTRODUCTION = """\
These are the Redis keys of a filter, here of `BLOOM_KEY = "shop:bloom"`, and of its spider `shop`.
The part in braces decides the hash slot, so all keys of a block are in one slot of a cluster.
Blocks are numbered from 0. A bitmap is named by its window, the start and the end of its period,
and its number in it.

The scripts that read and write these keys are in
[scrapy_bloom/bloom/protocol/lua](../../scrapy_bloom/bloom/protocol/lua). Each one starts with its
contract. To let a user of Redis use only these keys, see
[permissions](../how-to/redis-server.md#permissions)."""
EXAMPLE = Keys("shop:bloom")
#: What the methods of ``Keys`` are called with.
_SAMPLES = {
    "block": 0,
    "window": "default",
    "name": "<start>-<end>.0",
    "spider": "shop",
    "group": "<group>",
}
_TYPE = re.compile(r"(HASH|STRING|ZSET|SET|LIST): (.+)")


def page() -> str:
    """Return the page."""
    head = ("key", "type", "what it holds")
    found = table(head, rows())
    return document("Redis keys", "scrapy_bloom/bloom/model/keys.py", INTRODUCTION, found)


def rows() -> list[tuple[str, str, str]]:
    """Return the keys: name, type and meaning, as the docstrings of ``Keys`` have them."""
    found = []
    for method in vars(Keys).values():
        if described := _TYPE.match(inspect.getdoc(method) or ""):
            given = [_SAMPLES[p] for p in inspect.signature(method).parameters if p != "self"]
            meaning = described[2].replace("``", "`").rstrip(".")
            found.append((code(method(EXAMPLE, *given)), described[1], meaning))
    return found
