"""Reads claims with their requests, for subcommands that show them."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import redis

from scrapy_bloom.bloom.client.driver import reading
from scrapy_bloom.bloom.errors import explain, showable
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import ClaimPage, StoredClaim
from scrapy_bloom.cli.session import Server

_USER = re.compile(r"//[^/?#]*@")
#: Claims, and requests of claims, read at once.
PAGE = 256


def scan_block(bloom: BloomFilter, block: int) -> Iterator[ClaimPage]:
    """Yield the claims of a block, page by page. A claim may come twice."""
    cursor = ""
    while cursor != "0":
        scan = partial(claim_protocol.scan, block=block, cursor=cursor or "0", count=PAGE)
        page = bloom.run(scan)
        cursor = page.cursor
        yield page


def claims_of(
    server: Server, bloom: BloomFilter, items: Sequence[bytes]
) -> list[StoredClaim | None]:
    """Return the claims of items, which the filter has looked up before; None for no claim.

    Raises:
        StorageError: the server did not answer.
    """
    fields = defaultdict(list)
    for item in items:
        fields[bloom.session.hasher.block(item)].append(field_of(item))
    found = dict[str, StoredClaim | None]()
    for block, part in fields.items():
        stored = stored_claims(server, bloom, block, part)
        found |= {field: _parse(field, text) for field, text in zip(part, stored, strict=True)}
    return [found[field_of(item)] for item in items]


def stored_claims(
    server: Server, bloom: BloomFilter, block: int, fields: Sequence[str]
) -> list[bytes | None]:
    """Return claims of a block as they are stored, without the requests of other spiders.

    Raises:
        StorageError: the server did not answer.
    """
    if not fields:
        return []
    try:
        with reading():
            stored = server.client.hmget(Keys(bloom.key).claims(block), list(fields))
    except (redis.RedisError, OSError) as error:
        raise explain(error, server.address) from showable(error)
    return [text.partition(b"\n")[0] if isinstance(text, bytes) else None for text in stored]


def url_of(stored: bytes | None) -> str | None:
    """Return the URL of a stored claim; None if its request is not kept."""
    try:
        url = json.loads((stored or b"").split(b" ", 4)[4])["url"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return url if isinstance(url, str) else None


def without_credentials(url: str) -> str:
    """Return a URL without its user name and password."""
    return _USER.sub("//***@", url, count=1)


def printable(text: str) -> str:
    """Return a text with escapes: a terminal would obey control characters in it."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _parse(field: str, stored: bytes | None) -> StoredClaim | None:
    if stored is None:
        return None
    *head, request = stored.decode(errors="replace").split(" ", 4)
    return StoredClaim.parse(field, " ".join([*head, str(len(request))]))
