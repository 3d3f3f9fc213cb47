"""A filter as it's stored, read without changing it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.model.ring import SLACK_SECONDS, Layer, Ring, View
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.model.spec import Spec
from scrapy_bloom.bloom.protocol.claims import Claims, StoredClaim
from scrapy_bloom.bloom.protocol.rings import DEFAULT, Operation, Place, parts
from scrapy_bloom.bloom.protocol.scripts import Call, Reply
from scrapy_bloom.bloom.protocol.session import Batch, Key, Verdict

#: Blocks that are read, and URLs that are looked up, together.
READ_TOGETHER, LOOKED_UP_TOGETHER = 256, 64
#: Times that a filter is read again because it has changed.
MAX_READS = 10


class NoFilterError(BloomError):
    """There is no such filter."""


class Memory(NamedTuple):
    """What a filter remembers of a URL.

    Args:
        since: when the URL was seen at the earliest, in Unix seconds; 0 if that's unknown.
        until: when it's forgotten; 0 for never.
    """

    since: int
    until: int


class FoundClaim(NamedTuple):
    """A claim, and its block."""

    block: int
    claim: StoredClaim


class StoredFilter:
    """A filter as it's stored.

    Args:
        bloom: the filter.
        schedules: of the windows that the next crawl has; of others, that of the last crawl counts.

    Attributes:
        schedules: of all windows whose length is known.
        rings: as they were read.
        spiders: names of those that have crawled with it.
        now: the server's clock then.
    """

    def __init__(self, bloom: BloomFilter, schedules: Mapping[str, Schedule]) -> None:
        self.bloom, self._known = bloom, dict(schedules)
        self.schedules = self._known
        self.rings: dict[Place, Ring] = {}
        self.spiders: list[str] = []
        self.now = 0

    @property
    def spec(self) -> Spec:
        """What it's made with."""
        return self.bloom.session.known

    @property
    def windows(self) -> list[str]:
        """The windows that there are, the default one first."""
        return sorted({window for window, _ in self.rings}, key=lambda one: (one != DEFAULT, one))

    def read(self) -> None:
        """Read all that is stored, except bitmaps and claims.

        Raises:
            NoFilterError: there is no filter.
            StorageError: it's damaged, or the server can't be used.
        """
        session = self.bloom.session
        session.spec = self.bloom.run(session.find())
        if session.spec is None:
            raise NoFilterError(
                f"there is no filter {self.bloom.key!r} on {self.bloom.label}. Check the key, the "
                "address and --spider, or crawl something first"
            )
        self.rings.clear()
        for blocks in parts(range(self.spec.blocks), READ_TOGETHER):
            replies = self.bloom.run(_send([session.read_block(block) for block in blocks]))
            for block, reply in zip(blocks, replies, strict=True):
                self._take(block, reply)
        session.windows = {DEFAULT: Schedule(), **dict.fromkeys(self.windows, Schedule())}
        session.windows |= self.schedules

    def _take(self, block: int, reply: Reply) -> None:
        """Take over what a block has stored."""
        self.now, named = reply.now, defaultdict[str, list[str]](list)
        if reply.fields.get("id") != self.spec.id:
            return
        for field in reply.fields:
            kind, _, name = field.partition(":")
            named[kind].append(name)
        for window in named["v"]:
            self.rings[window, block] = self.bloom.session.parse(window, block, reply)
        if block == 0:
            self.spiders = sorted(named["s"])
            noted = {name: Schedule.parse(reply.fields[f"w:{name}"]) for name in named["w"]}
            self.schedules = {**noted, **self._known}

    # -- what is remembered --

    def forgets(self, ring: Ring, layer: Layer) -> int:
        """Return when a layer is forgotten; 0 for never."""
        if ring.window in self.schedules:
            return ring.forgets(layer, self.schedules[ring.window])
        return layer.expires and layer.expires - SLACK_SECONDS

    def live(self, ring: Ring) -> list[Layer]:
        """Return the layers of a ring that aren't forgotten, the oldest first."""
        return [one for one in ring.layers if not 0 < self.forgets(ring, one) <= self.now]

    def remembered(self, keys: Sequence[Key]) -> dict[Key, Memory]:
        """Look URLs up; return what is remembered of those that are.

        Raises:
            StorageError: the server can't be used.
        """
        found: dict[Key, Memory] = {}
        for part in parts(dict.fromkeys(keys), LOOKED_UP_TOGETHER):
            for _ in range(MAX_READS):
                if self._look_up(part, found):
                    break
                self.read()
            else:
                raise self.bloom.session.unstable()
        return found

    def _look_up(self, keys: Sequence[Key], found: dict[Key, Memory]) -> bool:
        """Look up URLs; return False if the filter has changed, and has to be read again."""
        script = "contains-counters" if self.spec.counting else "contains"
        batches = list(self._batches(keys))
        calls = [self.bloom.session.test(script, batch, ()) for batch in batches]
        replies = self.bloom.run(_send(calls))
        if any(reply.status == "stale" for reply in replies):
            return False
        for batch, reply in zip(batches, replies, strict=True):
            (layer,) = batch.view.tested
            # A layer whose bitmap is lost has no verdicts.
            for place, verdict in zip(batch.places, reply.verdicts, strict=False):
                if verdict == Verdict.SEEN:
                    memory = Memory(layer.opened, self.forgets(batch.view.ring, layer))
                    found.setdefault(keys[place], memory)
        return True

    def _batches(self, keys: Sequence[Key]) -> Iterator[Batch]:
        """Yield what has to be looked up in each layer, the most recent layers first."""
        hashed = [self.spec.hasher.hashes(item) for _, item in keys]
        for (window, block), ring in self.rings.items():
            places = [p for p, key in enumerate(keys) if (key[0], hashed[p][0]) == (window, block)]
            layers = self.live(ring)
            if not self.spec.tests_all:  # the oldest generation knows all that is remembered
                layers = [one for one in layers if one.generation == layers[0].generation]
            for layer in reversed(layers) if places else ():
                view = View(ring, (), (layer,), 0)
                yield Batch(view, places, [hashed[place][1] for place in places])

    # -- what is pending --

    def only_spider(self) -> str:
        """Return the spider that has crawled with it; "" if there are several, or none."""
        return self.spiders[0] if len(self.spiders) == 1 else ""

    def claims(self, spider: str) -> Claims:
        """Return a spider's claims."""
        return Claims(self.bloom.session, spider)

    def scan(self, spider: str) -> Iterator[FoundClaim]:
        """Yield a spider's claims, some of them twice if they change meanwhile."""
        claims = self.claims(spider)
        cursors = dict.fromkeys(range(self.spec.blocks), "0")
        while cursors:
            pages = self.bloom.run(claims.scan(cursors))
            for block, (_, _, part) in pages.items():
                yield from (FoundClaim(block, one) for one in part)
            cursors = {block: page[0] for block, page in pages.items() if page[0] != "0"}

    def find_claims(self, spider: str, keys: Sequence[Key]) -> dict[Key, StoredClaim]:
        """Return the claims that a spider has on URLs."""
        places = {key: (self.spec.hasher.block(key[1]), field_of(key[1])) for key in keys}
        found = self.bloom.run(self.claims(spider).find(list(places.values())))
        return {key: found[place][0] for key, place in places.items() if place in found}


def _send(calls: list[Call]) -> Operation[list[Reply]]:
    """Send calls together."""
    return (yield calls)
