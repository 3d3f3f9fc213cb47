"""A ring as one client holds it, and the script calls made of it. No I/O.

What all calls on a ring have in common is computed once, when the first of them is made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from struct import Struct

from scrapy_bloom.bloom.model.generations import Generation, Layer
from scrapy_bloom.bloom.model.hashing import offset_packer, offsets
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import COUNTER_BITS
from scrapy_bloom.bloom.protocol.scripts import Argument, Call, Script, load, to_resp

#: URLs in one call on a ring of one layer: at ~5 us each, a call holds the server for about 1 ms.
MAX_URLS_PER_CALL = 256
#: A call of a script as it is sent: what is before the offsets, and after them.
Frame = tuple[bytes, bytes]
_Arguments = tuple[Argument, ...]
#: Bytes, and URLs it takes, of a layer that is written.
_ROOM = Struct("<IQ")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What all calls on a ring have in common.

    Args:
        sizes: the different sizes of its layers in bits; a URL has k offsets for each.
        packer: of k offsets.
        add_script: the script that adds items.
        add_keys: its keys.
        add_head: its arguments before the offsets.
        add_tail: its arguments after them.
        claim_keys: keys of a claim.
        claim_head: arguments of a claim before its owner, without the offsets.
        add_frame: an addition of one item as it is sent, before its offsets and after them.
        claim_frame: the same of a claim, up to its owner.
        max_urls: URLs in one call.
    """

    sizes: tuple[int, ...]
    packer: Struct
    add_script: Script
    add_keys: tuple[str, ...]
    add_head: tuple[Argument, ...]
    add_tail: tuple[Argument, ...]
    claim_keys: tuple[str, ...]
    claim_head: tuple[Argument, ...]
    add_frame: Frame
    claim_frame: Frame
    max_urls: int

    @classmethod
    def of(cls, version: str, ring: Ring, keys: Keys) -> "_Parts":
        """Work the parts out."""
        written = ring.written
        layers = (*written, *(layer for layer in ring.tested if layer not in written))
        sizes = tuple(dict.fromkeys(layer.num_bits for layer in (*layers, *ring.layers)))
        k = len(ring.header.seeds)
        counts = tuple(f"n:{layer.name}" for layer in written)
        counting = ring.header.counting
        room = b"".join(_ROOM.pack(layer.memory, layer.capacity) for layer in written)
        packer, names = offset_packer(k), _keys(keys, ring.block, layers)
        script = load("count" if counting else "add")
        head: _Arguments = (version, ring.ends, k, _groups(layers, sizes), len(sizes))
        tail: _Arguments = (COUNTER_BITS if counting else 1, room, *counts)
        claim_keys, claim_head = _claim_parts(version, ring, keys, sizes, ring.tested)
        width = len(sizes) * packer.size
        return cls(
            sizes,
            packer,
            script,
            names,
            head,
            tail,
            claim_keys,
            claim_head,
            # A counting filter's addition ends with "nx" or "", a claim with seven arguments.
            _frame(Call(script, names, head), width, tail, counting),
            _frame(Call(load("claim"), claim_keys, claim_head[:5]), width, claim_head[5:], 7),
            # To discard a URL takes about twice as long as to add one.
            max(8, (1 if counting else 2) * MAX_URLS_PER_CALL // (1 + len(layers))),
        )


@dataclass(frozen=True)
class CachedRing:
    """A ring as this client last saw it.

    Args:
        version: nonce under which Redis has the ring.
        ring: the ring.
        keys: the filter's keys.
    """

    version: str
    ring: Ring
    keys: Keys

    @cached_property
    def _parts(self) -> _Parts:
        # For the first call on the block: to open a filter of many blocks takes few of them.
        return _Parts.of(self.version, self.ring, self.keys)

    @cached_property
    def ends(self) -> int:
        """Unix time at which the ring ends; 0 is never."""
        return self.ring.ends

    @cached_property
    def ledger_times(self) -> tuple[int, int, int]:
        """Unix times: its oldest and its active generation were opened; its keys expire."""
        generations = self.ring.generations
        return generations[-1].opened, generations[0].opened, self.ring.expiry

    def is_in(self, held: "Mapping[int, CachedRing]") -> bool:
        """Whether it is the ring of its block that is held."""
        now = held.get(self.ring.block)
        return now is not None and now.version == self.version

    @property
    def max_urls(self) -> int:
        """URLs in one call."""
        return self._parts.max_urls

    def pack(self, hashes: Sequence[int]) -> bytes:
        """Return the offsets of a URL in layers of all sizes."""
        pack = self._parts.packer.pack
        return b"".join([pack(*offsets(hashes, num_bits)) for num_bits in self._parts.sizes])

    def add(self, packed: bytes, *, if_absent: bool = True) -> Call:
        """Return the call that tests and sets items.

        Args:
            packed: their offsets.
            if_absent: whether a counting filter leaves the counters of seen items as they are.
        """
        tail = self._parts.add_tail
        if self.ring.header.counting:
            tail = (*tail, "nx" if if_absent else "")
        return Call(
            self._parts.add_script, self._parts.add_keys, (*self._parts.add_head, packed, *tail)
        )

    def renew(self, packed: bytes) -> Call:
        """Return the call that sets items, also those that are in an older generation."""
        written = self.ring.written[::-1]  # the first decides whether an item is new
        args = (*self._parts.add_head[:3], _groups(written, self._parts.sizes))
        bits, _, *_ = self._parts.add_tail
        room = b"".join(_ROOM.pack(layer.memory, layer.capacity) for layer in written)
        counts = (f"n:{layer.name}" for layer in written)
        tail = ("nx",) if self.ring.header.counting else ()
        return Call(
            self._parts.add_script,
            _keys(self.keys, self.ring.block, written),
            (*args, len(self._parts.sizes), packed, bits, room, *counts, *tail),
        )

    def add_one(self, packed: bytes, *, if_absent: bool = True) -> bytes:
        """Return the same call on one item as it is sent: each new URL passes here."""
        before, after = self._parts.add_frame
        if self.ring.header.counting:
            after += to_resp("nx" if if_absent else "")
        return b"%b%b%b" % (before, packed, after)

    def confirm(self, packed: bytes, fields: Sequence[str], owners: Sequence[str]) -> Call:
        """Return the call that records claimed items and ends their claims.

        Args:
            packed: their offsets.
            fields: of their claims.
            owners: whose claims they are.
        """
        call = self.add(packed)
        keys = (*call.keys, self.keys.claims(self.ring.block))
        return call._replace(keys=keys, args=(*call.args, *fields, f" {' '.join(owners)} "))

    def discard(self, packed: bytes) -> Call:
        """Return the call that takes URLs out of the newest layers they are in."""
        generations = self.ring.generations
        layers = [layer for generation in generations for layer in reversed(generation.layers)]
        args = self._test_args(layers, packed)
        counts = (f"n:{layer.name}" for layer in layers)
        return Call(load("discard"), _keys(self.keys, self.ring.block, layers), (*args, *counts))

    def contains(self, packed: bytes) -> Call:
        """Return the call that tests URLs."""
        return self._contains(self.ring.tested, packed)

    def claim(
        self,
        packed: bytes,
        owner: str,
        nonce: str,
        claims: Sequence[str],
        *,
        limits: tuple[int, int] = (0, 0),
        tested: bool = True,
    ) -> Call:
        """Return the call that claims URLs without recording them.

        Args:
            packed: offsets of the URLs.
            owner: the new owner of the claims.
            nonce: of this call.
            claims: for each URL the field of its claim, that of its page, and its request.
            limits: bytes that the block's claims take at most with their requests, and seconds that
                a failed URL waits; 0 for no limit.
            tested: whether to leave out URLs that are recorded already.
        """
        keys, head = self._parts.claim_keys, self._parts.claim_head
        if not tested:
            keys, head = _claim_parts(self.version, self.ring, self.keys, self._parts.sizes, ())
        args = (*head[:5], packed, *head[5:], owner, nonce, *limits, *claims)
        return Call(load("claim"), keys, args)

    def claim_one(self, packed: bytes, claim: tuple[str, str, int, int, str, str, str]) -> bytes:
        """Return the call that claims one URL as it is sent.

        Args:
            packed: its offsets.
            claim: owner, nonce and limits as of ``claim``, the field of the claim, that of its
                page, and its request.
        """
        before, after = self._parts.claim_frame
        return b"%b%b%b%b" % (before, packed, after, to_resp(*claim))

    def contains_in(self, generation: Generation, packed: bytes) -> Call:
        """Return the call that tests URLs against one generation."""
        return self._contains(generation.layers, packed)

    def _contains(self, layers: Sequence[Layer], packed: bytes) -> Call:
        keys = _keys(self.keys, self.ring.block, layers)
        return Call(load("contains"), keys, self._test_args(layers, packed))

    def _test_args(self, layers: Sequence[Layer], packed: bytes) -> tuple[Argument, ...]:
        *head, bits, room = _test_head(self.version, self.ring, self._parts.sizes, layers)
        return (*head, packed, bits, room)


def _frame(call: Call, width: int, tail: _Arguments, more: int) -> Frame:
    """Return a call as it is sent, before and after the offsets, without its last arguments.

    Args:
        call: the call, with the arguments before the offsets.
        width: bytes of the offsets.
        tail: arguments after them.
        more: number of arguments after these.
    """
    before = call.command()
    count = len(before) + 1 + len(tail) + more
    return b"*%d\r\n%b$%d\r\n" % (count, to_resp(*before), width), b"\r\n" + to_resp(*tail)


def _test_head(
    version: str, ring: Ring, sizes: tuple[int, ...], layers: Sequence[Layer]
) -> tuple[Argument, ...]:
    """Return the arguments of a test, without the offsets, which are the sixth."""
    bits = COUNTER_BITS if ring.header.counting else 1
    k = len(ring.header.seeds)
    return (version, ring.ends, k, _groups(layers, sizes), len(sizes), bits, b"")


def _claim_parts(
    version: str, ring: Ring, keys: Keys, sizes: tuple[int, ...], layers: Sequence[Layer]
) -> tuple[tuple[str, ...], tuple[Argument, ...]]:
    """Return the keys of a claim, and its arguments before the owner, without the offsets."""
    names = (*_keys(keys, ring.block, layers), keys.claims(ring.block))
    return names, (*_test_head(version, ring, sizes, layers), ring.expiry)


def _keys(keys: Keys, block: int, layers: Iterable[Layer]) -> tuple[str, ...]:
    return (keys.ring(block), *(keys.layer(block, layer.name) for layer in layers))


def _groups(layers: Iterable[Layer], sizes: tuple[int, ...]) -> bytes:
    """Return for each layer, as a byte, which of the sizes it has."""
    return bytes(sizes.index(layer.num_bits) for layer in layers)
