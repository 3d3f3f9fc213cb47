"""Claims on a filter, made and read by the protocol."""

from collections.abc import Callable

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy, StoredClaim
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession

A, B, C = b"a" * 20, b"b" * 20, b"c" * 20
OURS, THEIRS = "wthe-shopours", "wthe-shoptheirs"
#: A cool-down that lasts, and one that is over at once.
LATER, NOW = RetryPolicy("-the-shop", 1_000, 3), RetryPolicy("-the-shop", 0, 3)


def claim_text(item: bytes) -> str:
    """Return the request that stands in the claim of an item."""
    return f'{{"url":"{item.hex()}"}}'


def claim_item(bloom: BloomFilter, *items: bytes, owner: str = OURS, nonce: str = "1") -> str:
    requests = [claim_text(item) for item in items]
    return "".join(
        bloom.run(lambda session: claim_protocol.claim(session, items, requests, owner, nonce))
    )


def claim_unkept(bloom: BloomFilter, *items: bytes, page: bytes, owner: str, nonce: str) -> str:
    """Claim items that a page yielded, without their requests."""
    texts, pages = [""] * len(items), [field_of(page)] * len(items)
    claim = claim_protocol.claim
    return "".join(
        bloom.run(lambda session: claim(session, items, texts, owner, nonce, pages=pages))
    )


def release(
    bloom: BloomFilter, *items: bytes, owner: str = "", failure: RetryPolicy | None = None
) -> int:
    return bloom.run(lambda session: claim_protocol.release(session, items, owner, failure))


def reassign(bloom: BloomFilter, claim: StoredClaim, owner: str = THEIRS) -> dict[str, str]:
    block = bloom.run(_block_of(claim.field))
    return bloom.run(lambda session: claim_protocol.reassign(session, block, [claim], owner, "n"))


def _block_of(field: str) -> Callable[..., Operation[int]]:
    def find(session: FilterSession) -> Operation[int]:
        yield from session.open()
        return session.hasher.block(bytes.fromhex(field))

    return find


def claims(bloom: BloomFilter, count: int = 100) -> dict[str, StoredClaim]:
    """Return all claims, by field, as a scan shows them."""
    pages = claim_protocol.scan_all(bloom.run, range(bloom.open().blocks), count)
    return {claim.field: claim for _, page in pages for claim in page.claims}


def only(bloom: BloomFilter) -> StoredClaim:
    (claim,) = claims(bloom).values()
    return claim


#: A worker of another spider.
STRANGER = "wstrangerone"
