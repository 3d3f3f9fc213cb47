"""The server of a project's filters, and what subcommands read of a filter."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import redis
from scrapy.settings import Settings

from scrapy_bloom.bloom.client.driver import reading
from scrapy_bloom.bloom.errors import BloomError, RightsError, explain, showable
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.options import KEEP
from scrapy_bloom.bloom.protocol import claim_protocol, ledger_info, worker_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.bloom.protocol.info import FilterInfo, describe
from scrapy_bloom.bloom.protocol.ledger_info import LedgerInfo
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.bloom.protocol.worker_protocol import WorkerEntries
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.server import connect_filters
from scrapy_bloom.settings import DEFAULT, WORDS, BloomSettings

_USER = re.compile(r"//[^/?#]*@")
#: Claims, and requests of claims, read at once.
PAGE = 256


class NothingThereError(BloomError):
    """There is no such filter."""


@contextmanager
def calling(address: str, words: Mapping[str, str] = WORDS) -> Iterator[None]:
    """Raise a StorageError in the place of what a call of a client raises. For its calls alone."""
    try:
        with reading():
            yield
    except (redis.RedisError, OSError) as error:
        raise explain(error, address, words) from showable(error)


class ProjectServer:
    """The server of a project's filters.

    Args:
        settings: name the server and the filters.
        scrapy_settings: may name the server as scrapy-redis does.
        fingerprinter: import path of the class that makes the fingerprints of new filters.
    """

    def __init__(
        self, settings: BloomSettings, scrapy_settings: Settings, fingerprinter: str = ""
    ) -> None:
        self.settings = settings
        #: The project's filters; those that do not exist are made by its settings.
        self.filters = connect_filters(
            settings, scrapy_settings, on_difference=KEEP, fingerprinter=fingerprinter
        )
        self.client = self.filters.connection.client
        self.address = self.filters.connection.label
        self.close = self.filters.close

    def key(self, window: str) -> str:
        """Return the key of a window's filter."""
        prefix = self.settings.key
        return prefix if window == DEFAULT else f"{prefix}:{window}"

    def filter(self, key: str) -> BloomFilter:
        """Return a filter as it is stored, without the project's settings."""
        return BloomFilter(self.client, key, label=self.address, words=WORDS)

    def look(self, window: str) -> "Stored | None":
        """Read a window's filter without changing it; None if there is nothing."""
        return self.look_at(self.key(window), window)

    def look_at(self, key: str, window: str = "") -> "Stored | None":
        """Read the filter of a key without changing it; None if there is nothing."""
        bloom = self.filter(key)
        snapshot = bloom.look()
        # A header outlives its blocks.
        return Stored(self, window, bloom, snapshot) if snapshot and snapshot.rings else None

    def read(self, window: str) -> "Stored":
        """Read a window's filter, which must exist.

        Raises:
            NothingThereError: the filter does not exist.
        """
        found = self.look(window)
        if found is None:
            raise self.absent(window)
        return found

    def absent(self, window: str) -> NothingThereError:
        """Return the error for a filter that does not exist."""
        return NothingThereError(
            f"there is no filter {self.key(window)!r} on {self.address}: nothing has been crawled "
            "with it yet, all of it has expired, or it is on another server or under another key "
            "(--key)"
        )

    def ping(self) -> None:
        """Make sure that the server answers.

        Raises:
            StorageError: it does not.
        """
        try:
            with calling(self.address):
                self.client.ping()
        except RightsError:
            pass  # a refusal is an answer


@dataclass(frozen=True)
class Stored:
    """A filter as it was read.

    Args:
        server: has it.
        window: its window's name.
        bloom: the filter, without the project's settings.
        snapshot: what is stored.
    """

    server: ProjectServer
    window: str
    bloom: BloomFilter
    snapshot: Snapshot

    @property
    def key(self) -> str:
        """Its key."""
        return self.bloom.key

    @property
    def where(self) -> str:
        """Its key and server, for messages."""
        return f"{self.key} on {self.server.address}"

    @property
    def head(self) -> dict[str, Any]:
        """Its server, window and key, as JSON has them."""
        return {"address": self.server.address, "name": self.window, "key": self.key}

    @property
    def config(self) -> Config:
        """The settings that are stored, which a crawl may change."""
        return next(iter(self.snapshot.rings.values())).config

    @cached_property
    def info(self) -> FilterInfo:
        """What it is and holds."""
        lost = self.snapshot.header.blocks - len(self.snapshot.rings)
        return describe(self.key, self.snapshot, lost)

    @cached_property
    def ledger(self) -> LedgerInfo | None:
        """What its ledger holds; None if it has none, or the user may not read it."""
        try:
            found = self.bloom.run(partial(ledger_info.describe, snapshot=self.snapshot))
        except RightsError:  # of a user with the rights of an earlier version
            return None
        return found if found.pages else None

    @cached_property
    def workers(self) -> WorkerEntries:
        """The workers that have it open, or had."""
        return self.bloom.run(worker_protocol.read_workers)

    @property
    def alive(self) -> int:
        """How many workers are alive."""
        return living(self.workers)

    def claims(self) -> Iterator["FoundClaim"]:
        """Yield its claims, each once."""
        for block in range(self.snapshot.header.blocks):  # a filter may have 16,384
            seen = set[str]()
            for _, page in claim_protocol.scan_all(self.bloom.run, [block], PAGE):
                new = [claim for claim in page.claims if claim.field not in seen]
                seen.update(claim.field for claim in new)
                for claim in new:
                    yield FoundClaim(self, block, claim, page.now)

    def claims_of(self, items: Iterable[bytes]) -> dict[bytes, StoredClaim | None]:
        """Return the claims of items, which the filter has looked up before; None for no claim."""
        by_block = defaultdict(list)
        for item in items:
            by_block[self.bloom.session.hasher.block(item)].append(item)
        found = dict[bytes, StoredClaim | None]()
        for block, same in by_block.items():
            fields = [field_of(item) for item in same]
            found |= zip(same, map(_parse, fields, self.texts(block, fields)), strict=True)
        return found

    def texts(self, block: int, fields: Sequence[str]) -> list[bytes | None]:
        """Return claims of a block as they are stored, without the requests of other spiders.

        Raises:
            StorageError: the server did not answer.
        """
        with calling(self.server.address):
            stored = self.server.client.hmget(Keys(self.key).claims(block), list(fields))
        return [text.partition(b"\n")[0] if isinstance(text, bytes) else None for text in stored]


@dataclass(frozen=True, slots=True, eq=False)
class FoundClaim:
    """A claim, and where it is.

    Args:
        stored: its filter.
        block: its block there.
        claim: what a scan shows of it.
        now: the server's clock when it was read, in Unix seconds.
    """

    stored: Stored
    block: int
    claim: StoredClaim
    now: int

    @property
    def due(self) -> int:
        """When its URL is due, if it failed; else 0."""
        retry_after = self.stored.server.settings.retry_after
        return self.claim.due(self.now, retry_after) if self.claim.failed else 0


def with_texts(claims: Iterable[FoundClaim]) -> Iterator[tuple[FoundClaim, bytes | None]]:
    """Yield claims, each with its request as it is stored; the texts of many are read at once."""
    remaining = iter(claims)
    while part := list(islice(remaining, PAGE)):
        by_block = defaultdict[tuple[str, int], list[FoundClaim]](list)
        for one in part:
            by_block[one.stored.window, one.block].append(one)
        texts = dict[FoundClaim, bytes | None]()
        for (_, block), same in by_block.items():
            fields = [one.claim.field for one in same]
            texts |= zip(same, same[0].stored.texts(block, fields), strict=True)
        for one in part:
            yield one, texts[one]


def living(entries: WorkerEntries) -> int:
    """Return how many workers are alive; of very many, an estimate by those that were read."""
    found = workers.parse_all(entries.entries).values()
    alive = sum(worker.until > entries.now for worker in found)
    if not entries.is_partial or not found:
        return alive
    return round(entries.total * alive / len(found))


def url_of(stored: bytes | None) -> str | None:
    """Return the URL of a stored claim; None if its request is not kept."""
    try:
        url = json.loads((stored or b"").split(b" ", 4)[4])["url"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return url if isinstance(url, str) else None


def without_credentials(url: str) -> str:
    """Return a URL without its user name and password."""
    return _USER.sub("//***@", url, count=1)


def _parse(field: str, stored: bytes | None) -> StoredClaim | None:
    if stored is None:
        return None
    *head, request = stored.decode(errors="replace").split(" ", 4)
    return StoredClaim.parse(field, " ".join([*head, str(len(request))]))
