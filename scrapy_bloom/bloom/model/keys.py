"""The names of a filter's Redis keys. All keys of a block share one hash slot."""

import re
from dataclasses import dataclass

from scrapy_bloom.bloom.errors import ConfigurationError, shown


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under one prefix.

    Args:
        prefix: the filter's name; not empty, without ``{`` and ``}`` (Redis Cluster's hash tags).

    Raises:
        ConfigurationError: the prefix is not usable.
    """

    prefix: str

    def __post_init__(self) -> None:
        good = isinstance(self.prefix, str) and re.fullmatch(r"[^{}\ud800-\udfff]+", self.prefix)
        if not good:
            raise ConfigurationError(
                f"the filter's `key` must be a non-empty string without '{{' and '}}', "
                f"which mark hash slots in Redis, in valid Unicode; got {shown(self.prefix)}"
            )

    def header(self) -> str:
        """HASH: what all blocks share."""
        return f"{{{self.prefix}:0}}:header"

    def ring(self, block: int) -> str:
        """HASH: the block's ring and counts."""
        return f"{{{self.prefix}:{block}}}:ring"

    def layer(self, block: int, name: str) -> str:
        """STRING: the bitmap of one layer, ``name`` being ``<generation>.<index>``."""
        return f"{{{self.prefix}:{block}}}:{name}"

    def scratch(self, block: int, token: str, name: str) -> str:
        """STRING: what one script keeps for a moment, under a random name."""
        return f"{{{self.prefix}:{block}}}:scratch:{token}:{name}"

    @property
    def pattern(self) -> str:
        """What the names of all its keys match, as SCAN takes it; so may some of another filter."""
        return f"{{{escape(self.prefix)}:*}}:*"

    def of_block(self, block: int) -> tuple[str, ...]:
        """Return a key of each kind that a block has."""
        own = (self.ring(block), self.claims(block), self.layer(block, "0.0"))
        return own if block else (self.header(), *own, self.heartbeats(), self.workers_version())

    def is_bitmap(self, block: int, key: str) -> bool:
        """Whether a key has the name of a block's bitmap."""
        head = self.layer(block, "")
        name = r"[0-9]+\.[0-9]+"
        return key.startswith(head) and bool(re.fullmatch(name, key[len(head) :]))

    def claims(self, block: int) -> str:
        """HASH: the block's claims, which are not recorded in its bitmaps yet."""
        return f"{{{self.prefix}:{block}}}:claims"

    def entries(self, block: int) -> str:
        """LIST: the entries of the block's ledger that are not packed yet."""
        return f"{self.ledger(block)}:new"

    def ledger(self, block: int) -> str:
        """ZSET: the chunks of the block's ledger, by time."""
        return f"{{{self.prefix}:{block}}}:ledger"

    def chunks(self, block: int) -> str:
        """HASH: the content of these chunks."""
        return f"{self.ledger(block)}:chunks"

    def missing(self, block: int) -> str:
        """HASH: pages that were not found, or failed for good."""
        return f"{{{self.prefix}:{block}}}:missing"

    def of_ledger(self, block: int) -> tuple[str, ...]:
        """Return the keys that a block has with a ledger."""
        return self.entries(block), self.ledger(block), self.chunks(block), self.missing(block)

    def heartbeats(self) -> str:
        """ZSET: who has claims, and until when they count as alive."""
        return f"{{{self.prefix}:0}}:heartbeats"

    def workers_version(self) -> str:
        """STRING: nonce of the last change of the set of workers."""
        return f"{{{self.prefix}:0}}:workers-version"


def escape(name: str) -> str:
    """Return the pattern that a name alone matches, as SCAN and access control lists take it."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", name)
