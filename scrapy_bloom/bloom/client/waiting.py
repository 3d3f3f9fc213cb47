"""Reads what primaries answer to calls with a WAIT behind them."""

from collections.abc import Sequence
from typing import Any

import redis

from scrapy_bloom.bloom.client.cluster_routes import is_refusal
from scrapy_bloom.bloom.errors import short, shown
from scrapy_bloom.bloom.protocol.replication import Acknowledged


def refuse_errors(replies: Sequence[Any], calls: int) -> list[Any]:
    """Return the replies, of a cluster with ``Failure`` in the place of errors.

    Args:
        replies: to the calls, and then to WAIT, of each node.
        calls: how many they are. Refusals of WAIT are replies.

    Raises:
        redis.ResponseError: a server that is no cluster has refused a call.
    """
    for reply in replies[:calls]:
        if isinstance(reply, Exception):
            raise reply
    waited = [reply.error if is_refusal(reply) else reply for reply in replies[calls:]]
    return [*replies[:calls], *waited]


def fewest(waited: Sequence[Any]) -> Acknowledged:
    """Return the smallest of the replies to WAIT."""
    for reply in waited:
        if isinstance(reply, redis.ResponseError):
            return Acknowledged(0, short(reply))
        if not isinstance(reply, int):
            return Acknowledged(0, f"the answer {shown(reply)}")
    return Acknowledged(min(waited, default=0))
