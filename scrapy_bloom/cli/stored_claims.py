"""Reads claims with their requests, for subcommands that show them."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

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


def scan_claims(bloom: BloomFilter, blocks: int) -> Iterator[tuple[int, ClaimPage]]:
    """Yield the claims of a filter, each once, page by page, with their block."""
    for block in range(blocks):  # one after the other: a filter may have 16,384
        seen = set[str]()
        for _, page in claim_protocol.scan_all(bloom.run, [block], PAGE):
            claims = tuple(claim for claim in page.claims if claim.field not in seen)
            seen.update(claim.field for claim in claims)
            yield block, replace(page, claims=claims)


def claims_of(
    server: Server, bloom: BloomFilter, items: Iterable[bytes]
) -> dict[bytes, StoredClaim | None]:
    """Return the claims of items, which the filter has looked up before; None for no claim."""
    by_block = defaultdict(list)
    for item in items:
        by_block[bloom.session.hasher.block(item)].append(item)
    found = dict[bytes, StoredClaim | None]()
    for block, part in by_block.items():
        fields = [field_of(item) for item in part]
        stored = stored_claims(server, bloom, block, fields)
        found |= zip(part, map(_parse, fields, stored), strict=True)
    return found


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
