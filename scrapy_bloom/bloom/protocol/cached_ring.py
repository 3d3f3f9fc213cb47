"""A ring as one client holds it, the script calls made of it, and what replies say. No I/O.

What all calls on a ring have in common is computed once, when the first of them is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from struct import Struct

from scrapy_bloom.bloom.errors import RestartedError, StorageError
from scrapy_bloom.bloom.model.generations import Generation, Layer
from scrapy_bloom.bloom.model.hashing import offset_packer, offsets
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.sizing import COUNTER_BITS
from scrapy_bloom.bloom.protocol.scripts import RESTARTED, Argument, Call, Reply, load


class Verdict(StrEnum):
    """The result for one item; the value is its character in the scripts' replies.

    Attributes:
        is_new: whether the item counts as new: it is, or the server did not say.
        repeated: the verdict on the same item a second time in one call.
    """

    is_new: bool
    repeated: "Verdict"

    #: Recorded before.
    SEEN = "0"
    #: Not recorded before; now recorded, or claimed by the caller.
    NEW = "1"
    #: New, but not recorded: a layer is full and the block cannot grow.
    UNRECORDED = "2"
    #: Claimed by the same owner before.
    MINE = "3"
    #: Claimed by another owner, or failed and not due yet.
    OTHERS = "4"
    #: Seen, but not counted again by a counting filter: the layer is full.
    UNCOUNTED = "5"
    #: New and claimed, but its request is not stored: the block has no room for it.
    UNKEPT = "6"
    #: Claimed by the same owner before, without its request.
    MINE_UNKEPT = "7"
    #: Not confirmed: it is no longer claimed, or by another owner, or its page has failed.
    NOT_CLAIMED = "8"
    #: Its page has to yield it again: it is claimed for the same page, by any owner, without its
    #: request; or by another spider, and this request is not stored.
    YIELD_AGAIN = "9"
    #: As OTHERS, without its request.
    OTHERS_UNKEPT = "a"
    #: Claimed by another spider, or failed there: this request is stored with that claim.
    OTHER_SPIDERS = "b"
    #: No script answers this: the server did not reply.
    UNKNOWN = "?"


for _verdict in Verdict:
    # An attribute, because a crawl reads it for each request.
    _verdict.is_new = _verdict in (
        *(Verdict.NEW, Verdict.UNRECORDED, Verdict.UNKEPT, Verdict.UNKNOWN),
    )
    _verdict.repeated = _verdict
Verdict.NEW.repeated, Verdict.UNKEPT.repeated = Verdict.SEEN, Verdict.MINE_UNKEPT
#: Verdicts on items that are claimed without their requests, of which a page has to know.
UNKEPT_ELSEWHERE = frozenset((Verdict.MINE_UNKEPT, Verdict.YIELD_AGAIN))
#: Verdicts after which an item may be new at any time: they are not cached.
UNCACHED = UNKEPT_ELSEWHERE | {Verdict.OTHERS_UNKEPT, Verdict.UNRECORDED}
#: Verdicts for lack of room in a layer.
NO_ROOM = frozenset((Verdict.UNRECORDED, Verdict.UNCOUNTED))
#: Characters in replies -> verdicts.
BY_CODE = {verdict.value: verdict for verdict in Verdict if verdict is not Verdict.UNKNOWN}
#: Characters of the verdicts in a reply of ``add``, ``count`` or ``claim``.
VERDICTS = "".join(BY_CODE)


#: URLs in one call on a ring of one layer: at ~5 us each, a call holds the server for about 1 ms.
MAX_URLS_PER_CALL = 256
#: A call of a script as it is sent: what is before the offsets, and after them.
Frame = tuple[bytes, bytes]
#: Bytes, and URLs it takes, of a layer that is written.
_ROOM = Struct("<IQ")
#: Which argument of a call has the offsets of its URLs.
_OFFSETS = 5


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

    @cached_property
    def max_urls(self) -> int:
        """URLs in one call."""
        # To discard a URL takes about twice as long as to add one.
        most = (1 if self.ring.header.counting else 2) * MAX_URLS_PER_CALL
        return max(8, most // len(self._addition.keys))

    # -- what calls have in common: made for the first of them, as a filter may have many blocks --

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """The different sizes of its layers in bits; a URL has k offsets for each."""
        layers = (*self.ring.written, *self.ring.tested, *self.ring.layers)
        return tuple(dict.fromkeys(layer.num_bits for layer in layers))

    @cached_property
    def _packer(self) -> Struct:
        return offset_packer(len(self.ring.header.seeds))

    def _call(self, name: str, layers: Sequence[Layer], written: Sequence[Layer] = ()) -> Call:
        """Return a call without its URLs, which tests layers and writes some."""
        header, block = self.ring.header, self.ring.block
        args: tuple[Argument, ...] = (
            self.version,
            self.ring.ends,
            len(header.seeds),
            # For each layer, as a byte, which of the sizes it has.
            bytes(self._sizes.index(layer.num_bits) for layer in layers),
            len(self._sizes),
            b"",
            COUNTER_BITS if header.counting else 1,
            b"".join(_ROOM.pack(layer.memory, layer.capacity) for layer in written),
            *(f"n:{layer.name}" for layer in written),
        )
        names = (self.keys.layer(block, layer.name) for layer in layers)
        return Call(load(name), (self.keys.ring(block), *names), args)

    @cached_property
    def _addition(self) -> Call:
        script = "count" if self.ring.header.counting else "add"
        written, tested = self.ring.written, self.ring.tested
        return self._call(script, tuple(dict.fromkeys((*written, *tested))), written)

    @cached_property
    def _claim(self) -> Call:
        call = self._call("claim", self.ring.tested)
        keys = (*call.keys, self.keys.claims(self.ring.block))
        return call._replace(keys=keys, args=(*call.args, self.ring.expiry))

    @cached_property
    def _addition_frame(self) -> Frame:
        # A counting filter's addition ends with "nx" or "", a claim with seven arguments.
        return _frame(
            self._addition, self._packer.size * len(self._sizes), int(self.ring.header.counting)
        )

    @cached_property
    def _claim_frame(self) -> Frame:
        return _frame(self._claim, self._packer.size * len(self._sizes), 7)

    # -- calls --

    def pack(self, hashes: Sequence[int]) -> bytes:
        """Return the offsets of a URL in layers of all sizes."""
        pack = self._packer.pack
        return b"".join([pack(*offsets(hashes, num_bits)) for num_bits in self._sizes])

    def add(self, packed: bytes, *, if_absent: bool = True) -> Call:
        """Return the call that tests and sets items.

        Args:
            packed: their offsets.
            if_absent: whether a counting filter leaves the counters of seen items as they are.
        """
        how = ("nx" if if_absent else "",) if self.ring.header.counting else ()
        return _with(self._addition, packed, *how)

    def renew(self, packed: bytes) -> Call:
        """Return the call that sets items, also those that are in an older generation."""
        written = self.ring.written[::-1]  # the first decides whether an item is new
        how = ("nx",) if self.ring.header.counting else ()
        return _with(self._call(self._addition.script.name, written, written), packed, *how)

    def add_one(self, packed: bytes, *, if_absent: bool = True) -> bytes:
        """Return the same call on one item as it is sent: each new URL passes here."""
        before, after = self._addition_frame
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
        counts = (f"n:{layer.name}" for layer in layers)
        return _with(self._call("discard", layers), packed, *counts)

    def contains(self, packed: bytes, generation: Generation | None = None) -> Call:
        """Return the call that tests URLs, against one generation or all."""
        layers = generation.layers if generation else self.ring.tested
        return _with(self._call("contains", layers), packed)

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
        call = self._claim
        if not tested:
            ring, *_, claimed = call.keys
            call = call._replace(keys=(ring, claimed), args=(*call.args[:3], b"", *call.args[4:]))
        return _with(call, packed, owner, nonce, *limits, *claims)

    def claim_one(self, packed: bytes, claim: tuple[str, str, int, int, str, str, str]) -> bytes:
        """Return the call that claims one URL as it is sent.

        Args:
            packed: its offsets.
            claim: owner, nonce and limits as of ``claim``, the field of the claim, that of its
                page, and its request.
        """
        before, after = self._claim_frame
        return b"%b%b%b%b" % (before, packed, after, to_resp(*claim))


def _with(call: Call, packed: bytes, *more: Argument) -> Call:
    """Return a call with the offsets of its URLs, and its last arguments."""
    before, after = call.args[:_OFFSETS], call.args[_OFFSETS + 1 :]
    return call._replace(args=(*before, packed, *after, *more))


def _frame(call: Call, width: int, more: int) -> Frame:
    """Return a call on one URL as it is sent, before and after its offsets.

    Args:
        call: the call, without offsets and the last arguments.
        width: bytes of the offsets.
        more: number of the last arguments.
    """
    before, after = call.args[:_OFFSETS], call.args[_OFFSETS + 1 :]
    head = call._replace(args=before).command()
    count = len(head) + 1 + len(after) + more
    return b"*%d\r\n%b$%d\r\n" % (count, to_resp(*head), width), b"\r\n" + to_resp(*after)


def to_resp(*arguments: Argument) -> bytes:
    r"""Return arguments as Redis reads them: ``b"$3\r\nGET\r\n$1\r\nk\r\n"``."""
    encoded = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
    return b"".join([b"$%d\r\n%b\r\n" % (len(a), a) for a in encoded])


def is_answer(reply: Reply, items: int) -> bool:
    """Whether a reply holds the verdicts on so many items, and not the reason why it holds none.

    Raises:
        RestartedError: it is from another process of the server than the caller knows.
        StorageError: it holds verdicts, but not on so many items, or unknown ones.
    """
    if reply.status == RESTARTED:
        raise RestartedError("the server was restarted, or replaced by a replica: open it again")
    if reply.status != "ok":
        return False
    if len(reply.verdicts) != items or reply.verdicts.strip(VERDICTS):
        raise StorageError(f"a script answered {reply.verdicts!r:.40} on {items} items")
    return True
