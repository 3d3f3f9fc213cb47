"""Waiting for replicas: what is sent, and what comes of it. No I/O."""

from collections.abc import Iterable
from typing import NamedTuple

from scrapy_bloom.bloom.protocol.scripts import Argument, Call, load
from scrapy_bloom.bloom.protocol.session import FilterSession


class Wait(NamedTuple):
    """The command WAIT. It counts the writes of its own connection only: see ``touches``.

    Args:
        replicas: of each primary that have to acknowledge.
        milliseconds: the server answers after this time at the latest.
    """

    replicas: int
    milliseconds: int

    def command(self) -> tuple[Argument, ...]:
        """Return the command."""
        return ("WAIT", self.replicas, self.milliseconds)


class Acknowledged(NamedTuple):
    """What the primaries answered to WAIT.

    Args:
        replicas: replicas that have acknowledged, of the primary with the fewest.
        refusal: the error of a server that refuses the command; then there are 0.
    """

    replicas: int
    refusal: str = ""


def touches(sessions: Iterable[FilterSession]) -> list[Call]:
    """Return a write to each block: with a WAIT behind them, no earlier write is left out."""
    script = load("touch")
    return [
        Call(script, (session.keys.scratch(block, "touch", ""),), ())
        for session in sessions
        if session.header is not None
        for block in range(session.header.blocks)
    ]
