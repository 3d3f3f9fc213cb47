"""From an item to its block and its bits. Pure; versioned, because stored bits depend on it.

Scheme ``mmh3-x64-128/1``: seed ``i`` of the filter is a seed of MurmurHash3 x64 128-bit. The low
half of the hash under seed ``i``, modulo the layer's bits, is the offset that seed sets. The high
half under seed 0, modulo the number of blocks, is the block. The halves are different 64-bit
values: a block drawn from the same value as an offset would leave that seed 1/B of the offsets.

Listed seeds should not be neighbours if short items of NUL bytes matter: MurmurHash3 of n NULs (up
to 8) depends on seed XOR n only, so 0 and 1 of them share offsets under the seeds 4 and 5.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct

from mmh3 import mmh3_x64_128_utupledigest as murmur3

#: Fingerprints up to so many bytes are written out in the field; longer ones are hashed.
MAX_FIELD_BYTES = 32
#: Name of the scheme as stored in a filter's header.
SCHEME = "mmh3-x64-128/1"
#: Seeds of MurmurHash3 are unsigned 32-bit integers.
MAX_SEED = (1 << 32) - 1

#: What a filter takes: text (hashed as UTF-8) or bytes.
Item = str | bytes


def draw_seeds(count: int) -> tuple[int, ...]:
    """Draw ``count`` distinct secret seeds.

    Secret, so that no site can compute URLs that collide with those of others (T. Gerbet,
    A. Kumar, C. Lauradoux, The Power of Evil Choices in Bloom Filters, DSN 2015).
    """
    seeds: set[int] = set()
    while len(seeds) < count:
        seeds.add(secrets.randbelow(MAX_SEED + 1))
    return tuple(seeds)


def to_bytes(item: Item) -> bytes:
    """Return the bytes that are hashed: text as UTF-8 (lone surrogates too), bytes as they are.

    Raises:
        TypeError: the item is neither str nor bytes.
    """
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass")
    if isinstance(item, bytes):
        return item
    raise TypeError(f"items are str or bytes, not {type(item).__name__}: encode {item!r:.60} first")


@dataclass(frozen=True, slots=True)
class Hasher:
    """The hash functions of one filter.

    Args:
        seeds: one MurmurHash3 seed per bit that an item sets, distinct, 0 to 2**32 - 1.
        blocks: number of blocks, at least 1.
    """

    seeds: tuple[int, ...] = field(repr=False)  # secret
    blocks: int

    def block(self, item: bytes) -> int:
        """Return the item's block."""
        return murmur3(item, self.seeds[0])[1] % self.blocks

    def hashes(self, item: bytes) -> tuple[int, list[int]]:
        """Return the item's block and one unsigned 64-bit hash per seed."""
        return self.block(item), [murmur3(item, seed)[0] for seed in self.seeds]


def offsets(hashes: Sequence[int], num_bits: int) -> list[int]:
    """Reduce 64-bit hashes to offsets in a layer of ``num_bits`` bits (at most 2**32).

    The bias of the reduction is below ``num_bits / 2**64``; reducing 32-bit hashes instead would
    cost a factor of 2 in the error rate of the largest layers.
    """
    return [value % num_bits for value in hashes]


def offset_packer(num_hashes: int) -> Struct:
    """Return the packer of one item's offsets as the scripts read them: little-endian uint32."""
    return Struct(f"<{num_hashes}I")


def field_of(fingerprint: bytes) -> str:
    """Return the field of a fingerprint's claim."""
    if len(fingerprint) <= MAX_FIELD_BYTES:
        return fingerprint.hex()
    return "h" + blake2b(fingerprint, digest_size=20).hexdigest()
