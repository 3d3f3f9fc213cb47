"""A spider's claims, as calls that carry themselves out."""

from collections.abc import Sequence
from typing import Any

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol.claims import Claims, NewClaim, StoredClaim
from scrapy_bloom.bloom.protocol.session import Key, Verdict
from scrapy_bloom.bloom.protocol.workers import Workers

OURS, THEIRS = "ours", "theirs"
A, B, C = b"a" * 20, b"b" * 20, b"c" * 20
HASH = "{shop:bloom:0}:claims:shop"


class Spider:
    """A spider's claims on a filter of one block."""

    def __init__(self, bloom: BloomFilter) -> None:
        self.bloom, self.run = bloom, bloom.run
        self.claims = Claims(bloom.session, "shop", 600)
        self.workers = Workers(self.claims)

    def claim(
        self, *items: bytes, owner: str = OURS, nonce: str = "1", request: str | None = None
    ) -> list[Verdict]:
        texts = [text_of(item) if request is None else request for item in items]
        new = [NewClaim(key(item), nonce, one) for item, one in zip(items, texts, strict=True)]
        return self.run(self.claims.claim(new, owner, "worker"))

    def confirm(
        self, *items: bytes, owners: Sequence[str] = (OURS,), server: str = ""
    ) -> list[Verdict]:
        return self.run(self.claims.confirm([*map(key, items)], owners, server))

    def settle(self, *items: bytes, owner: str = OURS, again: bool = False) -> None:
        self.run(self.claims.release([*map(key, items)], [owner], again=again))

    def fail(self, *items: bytes, reason: str = "why", request: str = "", **options: Any) -> None:
        """Let claims wait for a minute, after an attempt."""
        waiting = [NewClaim(key(item), reason, request) for item in items]
        self.run(self.claims.wait(waiting, **{"seconds": 60, "attempts": 1, **options}))

    def leave(self, *claims: StoredClaim) -> int:
        return self.run(self.claims.leave(0, claims))

    def take(self, *claims: StoredClaim, owner: str = OURS) -> dict[str, str]:
        return self.run(self.claims.take(0, claims, owner, "n"))

    def request(self, item: bytes) -> str:
        """Return the stored request of a claim."""
        place = 0, item.hex()
        return self.run(self.claims.find([place]))[place][1]

    def stored(self) -> dict[str, StoredClaim]:
        """Return all claims by their fields, as scans show them."""
        found, cursor = dict[str, StoredClaim](), "0"
        while True:
            cursor, _, page = self.run(self.claims.scan({0: cursor}, 10))[0]
            found |= {one.field: one for one in page}
            if cursor == "0":
                return found

    def owners(self) -> dict[bytes, str]:
        """Return whose claims items are."""
        return {bytes.fromhex(field): one.owner for field, one in self.stored().items()}

    def only(self) -> StoredClaim:
        (claim,) = self.stored().values()
        return claim


def key(item: bytes) -> Key:
    return "default", item


def text_of(item: bytes) -> str:
    return f'{{"of": "{item.hex()}"}}'
