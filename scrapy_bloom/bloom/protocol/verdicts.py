"""Verdicts of the scripts that add and claim items. Pure."""

from enum import Enum


class Verdict(str, Enum):
    """The result for one item; the value is its character in the scripts' replies."""

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
    #: No script answers this: the server did not reply.
    UNKNOWN = "?"

    @property
    def is_new(self) -> bool:
        """Whether the script found the item neither recorded nor claimed."""
        return self in _NEW


_NEW = frozenset((Verdict.NEW, Verdict.UNRECORDED, Verdict.UNKEPT))
#: Verdicts for lack of room in a layer.
NO_ROOM = frozenset((Verdict.UNRECORDED, Verdict.UNCOUNTED))
#: Characters in replies -> verdicts.
BY_CODE = {verdict.value: verdict for verdict in Verdict if verdict is not Verdict.UNKNOWN}
