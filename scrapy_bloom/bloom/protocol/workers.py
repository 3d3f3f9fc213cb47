"""Keeps in Redis which workers of a spider live, and the claims that they give each other. No I/O.

A busy worker makes claims its group's, and lists them in shares. Each idle one receives a share.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol.claims import Claims, StoredClaim
from scrapy_bloom.bloom.protocol.rings import Operation, parts
from scrapy_bloom.bloom.protocol.scripts import Call, call
from scrapy_bloom.bloom.protocol.session import Key

#: Seconds that a list of shares lasts; scans find their claims, too.
SHARES_SECONDS = 86_400
_SHARED = re.compile(r"(?:^| )([0-9]{1,5}):([0-9a-z:]{1,400})(?= |$)")
#: The server's clock, and for each worker until when it lives and whether it is idle.
Living = tuple[int, dict[str, tuple[int, bool]]]


class Workers:
    """The workers of a spider.

    Args:
        claims: of the spider.
    """

    def __init__(self, claims: Claims) -> None:
        self._claims, self._spider, self._keys = claims, claims.spider, claims.session.keys

    def beat(self, worker: str, seconds: int, *, is_idle: bool = False) -> Operation[Living]:
        """Note that a worker lives for so long, and return who lives."""
        return (yield from self._living("beat", worker, seconds + 0.5 if is_idle else seconds))

    def living(self) -> Operation[Living]:
        """Return who lives, without a change: a read-only replica answers, too."""
        return (yield from self._living("workers"))

    def _living(
        self, script: str, worker: str = "", seconds: float | str = ""
    ) -> Operation[Living]:
        key = self._keys.workers(self._spider)
        (reply,) = yield [call(script, (key,), worker=worker, seconds=seconds)]
        scores = {name: min(max(float(score), 0.0), 1e12) for name, score in reply.fields.items()}
        return reply.now, {name: (int(one), one % 1 > 0) for name, one in scores.items()}

    def give(self, keys: Sequence[Key], owner: str, group: str, shares: int) -> Operation[set[Key]]:
        """Make an owner's claims its group's, and list them in so many shares; return which."""
        given = yield from self._claims.own(keys, group, owner)
        if given:
            block_of = self._claims.session.known.hasher.block
            texts = [f"{block_of(item)}:{field_of(item)}" for _, item in given]
            name, groups = self._keys.shares(self._spider, group), self._keys.groups(self._spider)
            size = -(-len(given) // shares)
            yield [
                Call(name, ("RPUSH", name, *map(" ".join, parts(texts, size)))),
                Call(name, ("EXPIRE", name, SHARES_SECONDS)),
                Call(groups, ("ZADD", groups, 0, group)),
                Call(groups, ("EXPIRE", groups, SHARES_SECONDS)),
            ]
        return {*given}

    def count_shares(self, group: str) -> Operation[int]:
        """Return how many shares no idle worker of a group has received yet."""
        name = self._keys.shares(self._spider, group)
        (reply,) = yield [Call(name, ("LLEN", name))]
        return int(reply.data)

    def receive(self, group: str) -> Operation[dict[int, list[StoredClaim]]]:
        """Return for each block the claims of one of a group's shares, to be picked up."""
        (reply,) = yield [call("receive", (self._keys.shares(self._spider, group),))]
        found: dict[int, list[StoredClaim]] = defaultdict(list)
        for block, field in _SHARED.findall(reply.verdicts):
            found[int(block)].append(StoredClaim(field, group, "-", 0, 0, 0))
        return found
