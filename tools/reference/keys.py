"""docs/reference/keys.md."""

import inspect
import re

from scrapy_bloom.bloom.model.keys import Keys
from tools.reference.markdown import code, document, table

INTRODUCTION = """\
The keys of a filter in Redis, here of the key `shop:bloom`. The part in braces is the hash
slot: all keys of a block are in one slot of a cluster. Blocks are numbered from 0; a named
window is a filter of its own, of the key `shop:bloom:<name>`. What is in the keys: [decision
018](../decisions/018-blocks.md). What the scripts do with them stands at the heads of the
[files](../../scrapy_bloom/bloom/protocol/lua). A user who has only these keys:
[rights](../acl.md)."""
EXAMPLE = Keys("shop:bloom")
#: What the methods of ``Keys`` are called with.
_SAMPLES = {"block": 0, "name": "7.0", "token": "<token>"}
_TYPE = re.compile(r"(HASH|STRING|ZSET|SET|LIST): (.+)")


def page() -> str:
    """Return the page."""
    head = ("key", "type", "what it holds")
    pattern = f"All of them match `{EXAMPLE.pattern}`."
    return document(
        "Redis keys", "scrapy_bloom/bloom/model/keys.py", INTRODUCTION, table(head, rows()), pattern
    )


def rows() -> list[tuple[str, str, str]]:
    """Return the keys: name, type and meaning, as the docstrings of ``Keys`` have them."""
    found = []
    for method in vars(Keys).values():
        if described := _TYPE.match(inspect.getdoc(method) or ""):
            given = [_SAMPLES[p] for p in inspect.signature(method).parameters if p != "self"]
            meaning = described[2].replace("``", "`").rstrip(".")
            found.append((code(method(EXAMPLE, *given)), described[1], meaning))
    return found
