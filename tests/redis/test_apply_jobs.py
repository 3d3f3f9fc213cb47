"""What queued writes do with claims that turn out to be another worker's."""

from typing import Any

import pytest
from redis import Redis
from scrapy.settings import Settings
from support.claims import OURS, THEIRS, A, B, C, claims

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.base import complete
from scrapy_bloom.bloom.client.connection import Connection
from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy
from scrapy_bloom.crawl import apply_jobs
from scrapy_bloom.crawl.apply_jobs import JobApplier
from scrapy_bloom.crawl.context import Context, Runtime
from scrapy_bloom.crawl.jobs import ClaimOwner, Job, JobKind
from scrapy_bloom.crawl.local_state import LocalState
from scrapy_bloom.crawl.server import Filters, Server
from scrapy_bloom.fingerprinter import versioned
from scrapy_bloom.settings import BloomSettings


class Worker:
    """Applies jobs to a filter."""

    def __init__(self, client: Redis, **options: Any) -> None:
        self.bloom = BloomFilter(client, "k", **{"capacity": 1_000, "blocks": 1, **options})
        self.server = Server(Filters({"default": self.bloom}, Connection(client, "")))
        self.server.identify(complete(self.server.ask_id()))
        settings = BloomSettings.from_scrapy(Settings(), "shop")
        here: Any = None  # nothing is reported
        context = Context(settings, here, here, Runtime(), self.server, LocalState(0, 1.0))
        owner = ClaimOwner(OURS, OURS, RetryPolicy("-the-shop", 1_000, 5))
        self._applier = JobApplier(context, owner)

    def claim(self, item: bytes, owner: str, request: str = "{}") -> None:
        """Make a claim for an owner."""
        claim = claim_protocol.claim
        self.bloom.run(lambda session: claim(session, [item], [request], owner, "n"))

    def apply(self, kind: JobKind, item: bytes, page: bytes = b"") -> list[bytes]:
        """Apply one job, of a request that a page has yielded; return what was not recorded."""
        request = "{}" * (kind in (JobKind.CLAIM, JobKind.FAIL))
        job = Job(kind, "default", item, request, page=field_of(page) if page else "")
        return complete(self._applier.apply([job]))


@pytest.fixture
def worker(client: Redis) -> Worker:
    return Worker(client)


@pytest.mark.parametrize("owner", [OURS, THEIRS])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_page_is_left_for_later_if_another_worker_may_lose_a_request_of_its(
    worker: Worker, is_kept: bool, owner: str
) -> None:
    """The owner may be a queue that workers share: the page that waits is another worker's.

    So is a page that has waited for that one: unit/test_jobs.py.
    """
    worker.claim(A, owner, "{}" if is_kept else "")
    worker.claim(B, OURS)
    worker.apply(JobKind.CLAIM, A, page=B)
    worker.apply(JobKind.CONFIRM, B)
    assert (B in worker.bloom) is is_kept
    assert claims(worker.bloom)[A.hex()].owner == owner


def test_a_failed_page_whose_claim_is_lost_is_tried_again(worker: Worker) -> None:
    """Another server has taken over without it. Not one that is crawled, or another worker's."""
    worker.bloom.add(B)
    worker.claim(C, THEIRS)
    for item in (A, B, C):
        worker.apply(JobKind.FAIL, item)
    found = claims(worker.bloom)
    assert {field: claim.owner for field, claim in found.items()} == {
        A.hex(): "-the-shop",
        C.hex(): THEIRS,
    }
    assert (found[A.hex()].attempt, found[A.hex()].length) == (1, len("{}"))


# -- versions --

VERSION = versioned(A, b"2026-01-02")


def test_a_version_and_its_url_are_recorded_together_or_not_at_all(worker: Worker) -> None:
    """Only if the page is confirmed by who has claimed the version."""
    other = versioned(C, b"2026-01-02")
    worker.claim(other, THEIRS)
    for version in (VERSION, other):
        worker.apply(JobKind.CONFIRM, version)
    assert not any(worker.bloom.contains([VERSION, A, other, C]))
    for kind in (JobKind.DONE, JobKind.RELEASE, JobKind.FAIL, JobKind.CLAIM):
        worker.claim(VERSION, OURS)
        worker.apply(kind, VERSION)
        assert worker.bloom.contains([VERSION, A]) == [False, False], kind
    for kind, page in ((JobKind.CONFIRM, B), (JobKind.RECORD, C)):
        crawled = versioned(page, b"2026-01-02")
        worker.claim(crawled, OURS)
        worker.apply(kind, crawled)
        assert worker.bloom.contains([crawled, page, A]) == [True, True, False]


def test_the_url_is_recorded_with_the_next_pages_if_the_server_failed(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of the version is gone by then: its job alone would not do it."""
    worker.claim(VERSION, OURS)
    with monkeypatch.context() as patch:
        patch.setattr(apply_jobs, "renew", fail)
        with pytest.raises(StorageError):
            worker.apply(JobKind.CONFIRM, VERSION)
    assert worker.bloom.contains([VERSION, A]) == [True, False]
    worker.apply(JobKind.CONFIRM, VERSION)
    assert worker.bloom.contains([VERSION, A]) == [True, True]


def fail(*_: object, **__: object) -> None:
    raise StorageError("the server has gone")


@pytest.mark.parametrize("kind", [JobKind.CONFIRM, JobKind.RECORD])
def test_a_url_for_which_there_is_no_room_is_reported(client: Redis, kind: JobKind) -> None:
    worker = Worker(client, capacity=8, growth=0)
    full = b""
    for number in range(1_000):
        item = versioned(b"%20d" % number, b"1")
        worker.claim(item, OURS)
        if unrecorded := worker.apply(kind, item):
            full = unrecorded[-1]
            break
    assert full
    assert full not in worker.bloom
