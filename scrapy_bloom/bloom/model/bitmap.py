"""Describes one bitmap of a filter: its name, its size, and when it expires. Pure."""

from typing import NamedTuple

#: Seconds that a bitmap outlives its content, in case the server's clock goes back a little.
SLACK_SECONDS = 86_400


class Bitmap(NamedTuple):
    """One bitmap.

    Args:
        opened: when its generation's period started; 0 for the first one without periods.
        ends: when the period ends; 0 for never. Both name the generation.
        number: its place in the generation.
        bits: its size; in a counting filter, its number of counters.
        capacity: URLs that it takes.
        expires: when it may be deleted; 0 for never.
        width: bits of a counter; 1 if it has none.
    """

    opened: int
    ends: int
    number: int
    bits: int
    capacity: int
    expires: int
    width: int = 1

    @property
    def name(self) -> str:
        """The last part of its key, and its name in the ring."""
        return f"{self.opened}-{self.ends}.{self.number}"

    @property
    def text(self) -> str:
        """Its value in the ring's hash, which ``Ring.parse`` reads."""
        return " ".join(map(str, self[3:]))

    @property
    def memory(self) -> int:
        """Bytes of its bitmap."""
        return (self.bits * self.width + 7) // 8

    @property
    def generation(self) -> tuple[int, int]:
        """The values that all bitmaps of its generation share."""
        return self.opened, self.ends

    @property
    def key_expires(self) -> int:
        """When its key expires by itself; 0 for never.

        A bitmap that was made without a window has no expiry on its key, because the next run may
        be without a window again.
        """
        return self.expires if self.ends else 0
