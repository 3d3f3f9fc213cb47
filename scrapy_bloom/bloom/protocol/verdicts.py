"""Verdicts of the scripts that add and claim items. Pure."""

from enum import StrEnum


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
