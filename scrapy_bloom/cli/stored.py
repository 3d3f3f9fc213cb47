"""Reads a filter as it's stored, for commands that show it and must not change it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scrapy_bloom.bloom.client.transport import FAILURES
from scrapy_bloom.bloom.errors import BloomError, ConfigurationError, explain
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.model.ring import View
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.model.spec import Spec
from scrapy_bloom.bloom.protocol import whole
from scrapy_bloom.bloom.protocol.claims import Claims, StoredClaim
from scrapy_bloom.bloom.protocol.notes import noted
from scrapy_bloom.bloom.protocol.rings import DEFAULT, Operation, Place, parts
from scrapy_bloom.bloom.protocol.scripts import Call, Reply
from scrapy_bloom.bloom.protocol.session import Batch, Key, Verdict
from scrapy_bloom.cli.output import progress

#: URLs that are looked up together, and keys that are scanned.
LOOKED_UP_TOGETHER, SCANNED_TOGETHER = 512, 1_000
#: Since when a URL is remembered at the earliest (0 if that's unknown), and until when (0 for
#: forever), in Unix seconds.
Memory = tuple[int, int]
#: The block of a claim, and the claim.
Found = tuple[int, StoredClaim]


class NoFilterError(BloomError):
    """There is no such filter."""


class StoredFilter:
    """A filter as it's stored.

    Args:
        client: of its server.
        key: its key.
        label: the server's address for error messages.
        schedules: of the windows that the next crawl has; of others, that of the last crawl counts.

    Attributes:
        bloom: the filter.
        schedules: of all windows that crawls have noted, or that the next one has.
        views: its rings, as they were read.
        spiders: names of those that have crawled with it.

    Raises:
        NoFilterError: there is no filter.
        StorageError: it's damaged, or the server can't be used.
    """

    def __init__(
        self, client: Any, key: str, label: str, schedules: Mapping[str, Schedule]
    ) -> None:
        bloom = BloomFilter(client, key, label=label)
        self.spiders, known = bloom.run(noted(bloom.session))
        self.schedules = {**known, **schedules}
        self.bloom = BloomFilter(client, key, label=label, windows=self.schedules)
        self.views: dict[Place, View] = {}
        self.read()

    @property
    def head(self) -> dict[str, Any]:
        """What JSON documents start with."""
        return {"filter": self.bloom.key, "address": self.bloom.label}

    def __str__(self) -> str:
        return f"{self.bloom.key} on {self.bloom.label}"

    @property
    def spec(self) -> Spec:
        """Its seeds, shards and sizes."""
        return self.bloom.session.known

    @property
    def windows(self) -> list[str]:
        """The windows that there are, the default one first."""
        return sorted({window for window, _ in self.views}, key=lambda one: (one != DEFAULT, one))

    def read(self) -> None:
        """Read its spec and its rings."""
        session = self.bloom.session
        session.spec = self.bloom.run(session.find())
        if session.spec is None:
            raise NoFilterError(
                f"There is no filter {self.bloom.key!r} on {self.bloom.label}. Check --key, "
                "--spider and BLOOM_REDIS_URL, or crawl something first"
            )
        self.views = self.bloom.run(whole.read(session))

    # -- remembered URLs --

    def remembered(self, keys: Sequence[Key]) -> dict[Key, Memory]:
        """Look URLs up; return since when and until when they are remembered.

        Raises:
            StorageError: the server can't be used.
        """
        found: dict[Key, Memory] = {}
        session = self.bloom.session
        script = "contains-counters" if self.spec.counting else "contains"
        for part in parts(dict.fromkeys(keys), LOOKED_UP_TOGETHER):
            batches = list(self._batches(part))
            replies = self.bloom.run(_send([session.test(script, one, ()) for one in batches]))
            for batch, reply in zip(batches, replies, strict=True):
                if reply.status == "stale":  # the filter has changed meanwhile
                    self.read()
                    return self.remembered(keys)
                ring, (bitmap,) = batch.view.ring, batch.view.tested
                forgets = ring.forgets(bitmap, self.schedules.get(ring.window))
                # A bitmap that is lost has no verdicts.
                for place, verdict in zip(batch.places, reply.verdicts, strict=False):
                    if verdict == Verdict.SEEN:
                        found.setdefault(part[place], (bitmap.opened, forgets))
        return found

    def _batches(self, keys: Sequence[Key]) -> Iterator[Batch]:
        """Yield the URLs to be looked up in each bitmap, the most recent bitmaps first."""
        blocks = [self.spec.hasher.block(item) for _, item in keys]
        for (window, block), view in self.views.items():
            places = [p for p, key in enumerate(keys) if (key[0], blocks[p]) == (window, block)]
            for bitmap in view.tested if places else ():
                own = View(view.ring, (), (bitmap,), 0)
                yield Batch(own, places, [keys[place][1] for place in places])

    # -- pending requests --

    def spider(self, name: str) -> str:
        """Return the name of a spider, or that of the only one; "" if nothing has crawled.

        Raises:
            ConfigurationError: there is no name, and there are several spiders.
        """
        if not name and len(self.spiders) > 1:
            names = ", ".join(self.spiders)
            raise ConfigurationError(
                f"There are several spiders. Choose one of {names} with --spider"
            )
        return name or "".join(self.spiders)

    def claims(self, spider: str) -> Claims:
        """Return a spider's claims."""
        return Claims(self.bloom.session, spider)

    def scan(self, spider: str) -> Iterator[Found]:
        """Yield a spider's claims, some of them twice if they change meanwhile."""
        claims = self.claims(spider)
        cursors, count = dict.fromkeys(range(self.spec.blocks), "0"), 0
        with progress("pending requests") as show:
            while cursors:
                pages = self.bloom.run(claims.scan(cursors))
                for block, (_, _, part) in pages.items():
                    yield from ((block, one) for one in part)
                    count += len(part)
                cursors = {block: page[0] for block, page in pages.items() if page[0] != "0"}
                show(count)

    def find_claims(self, spider: str, keys: Sequence[Key]) -> dict[Key, StoredClaim]:
        """Return the claims that a spider has on URLs."""
        places = {key: (self.spec.hasher.block(key[1]), field_of(key[1])) for key in keys}
        found = self.bloom.run(self.claims(spider).find(list(places.values())))
        return {key: found[place][0] for key, place in places.items() if place in found}


def filter_keys(client: Any, label: str) -> list[str]:
    """Return the keys of all filters on a server or a cluster.

    Raises:
        StorageError: the server can't be used.
    """
    try:
        found = list(client.scan_iter(match="{*:0}:ring", count=SCANNED_TOGETHER))
    except FAILURES as error:
        raise explain(error, label) from error
    texts = {key.decode("utf-8", "replace") for key in found}
    return sorted(text.removeprefix("{").removesuffix(":0}:ring") for text in texts)


def _send(calls: list[Call]) -> Operation[list[Reply]]:
    """Send calls together."""
    return (yield calls)
