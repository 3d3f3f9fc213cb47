"""What queued writes do with claims that turn out to be another worker's."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.connection import Connection
from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy
from scrapy_bloom.crawl.apply_jobs import JobApplier
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.crawl.jobs import ClaimOwner, Job, JobKind, Steps, run_blocking
from scrapy_bloom.crawl.server_state import ServerState
from scrapy_bloom.fingerprinter import versioned

FIRST, SECOND = b"1" * 20, b"2" * 20
#: Of one spider: the tag comes second in an owner.
OURS, THEIRS = "wtheshop-ours", "wtheshop-theirs"


class Worker:
    """Applies jobs to a filter."""

    def __init__(self, client: redis.Redis, **options: Any) -> None:
        self._client = client
        self.bloom = BloomFilter(client, "k", **{"capacity": 1_000, "blocks": 1, **options})
        self._filters = Filters({"default": self.bloom}, Connection(client, ""))
        server = ServerState(time.monotonic)
        server.identify(self._filters.server_id())
        self._applier = JobApplier(
            ClaimOwner(OURS, OURS, RetryPolicy("-theshop", 1_000, 5)),
            server,
            lambda size: "0" * size,
            restarted=print,
            repeated=print,
            freed=bool,
        )

    def claim(self, item: bytes, owner: str, request: str = "{}") -> None:
        """Make a claim for an owner."""
        claim = claim_protocol.claim
        self.bloom.run(lambda session: claim(session, [item], [request], owner, "n"))

    def apply(
        self,
        kind: JobKind,
        item: bytes,
        relies_on: Sequence[bytes] = (),
        yielded: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Apply one job; return what could not be recorded."""
        return run_blocking(self.steps(kind, item, relies_on, yielded), self._filters)

    def steps(
        self,
        kind: JobKind,
        item: bytes,
        relies_on: Sequence[bytes] = (),
        yielded: Sequence[bytes] = (),
    ) -> Steps[list[bytes]]:
        """Return the steps of a job."""
        job = Job(
            kind,
            "default",
            item,
            "{}" * (kind is JobKind.CLAIM),
            relies_on=frozenset(("default", one) for one in relies_on),
            yielded=frozenset(("default", one) for one in yielded),
        )
        return self._applier.apply([job])

    def owner(self, item: bytes) -> str:
        """Return the owner of a claim."""
        claim = self._client.hget("{k:0}:claims", field_of(item))
        assert isinstance(claim, bytes)
        return claim.split()[0].decode()


@pytest.fixture
def worker(client: redis.Redis) -> Worker:
    return Worker(client)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_page_that_relies_on_one_of_another_worker_is_left_for_later(
    worker: Worker, is_recorded: bool
) -> None:
    """The first page waits for a request, in vain if it is not recorded by this worker."""
    if is_recorded:
        worker.bloom.add(FIRST)
    else:
        worker.claim(FIRST, owner=THEIRS)
    worker.claim(SECOND, owner=OURS)
    worker.apply(JobKind.CLAIM, FIRST)
    worker.apply(JobKind.CONFIRM, SECOND, relies_on=[FIRST])
    assert SECOND not in worker.bloom
    assert worker.owner(SECOND) == "-theshop"


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_page_that_relies_on_one_of_the_same_worker_is_recorded(
    worker: Worker, is_claimed: bool
) -> None:
    if is_claimed:
        worker.claim(FIRST, owner=OURS)
    worker.claim(SECOND, owner=OURS)
    worker.apply(JobKind.CLAIM, FIRST)
    worker.apply(JobKind.CONFIRM, SECOND, relies_on=[FIRST])
    assert SECOND in worker.bloom
    assert worker.owner(FIRST) == OURS


@pytest.mark.parametrize("owner", [OURS, THEIRS])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_page_is_left_for_later_if_another_worker_may_lose_a_request_of_its(
    worker: Worker, is_kept: bool, owner: str
) -> None:
    """The owner may be a queue that workers share: the page that waits is another worker's."""
    worker.claim(FIRST, owner, "{}" if is_kept else "")
    worker.claim(SECOND, OURS)
    worker.apply(JobKind.CLAIM, FIRST)
    worker.apply(JobKind.CONFIRM, SECOND, yielded=[FIRST])
    assert (SECOND in worker.bloom) is is_kept
    assert worker.owner(FIRST) == owner


# -- versions --

VERSION = versioned(FIRST, b"2026-01-02")


@pytest.mark.parametrize("owner", ["", THEIRS])
def test_the_url_of_a_version_that_is_not_confirmed_is_not_recorded(
    worker: Worker, owner: str
) -> None:
    if owner:
        worker.claim(VERSION, owner)
    worker.apply(JobKind.CONFIRM, VERSION)
    assert worker.bloom.contains([VERSION, FIRST]) == [False, False]


def test_a_version_and_its_url_are_recorded_together(worker: Worker) -> None:
    worker.claim(VERSION, OURS)
    worker.apply(JobKind.CONFIRM, VERSION)
    assert worker.bloom.contains([VERSION, FIRST, SECOND]) == [True, True, False]


def test_a_page_that_is_not_to_be_recorded_leaves_its_url(worker: Worker) -> None:
    for kind in (JobKind.DONE, JobKind.RELEASE, JobKind.FAIL, JobKind.CLAIM):
        worker.claim(VERSION, OURS)
        worker.apply(kind, VERSION)
        assert worker.bloom.contains([VERSION, FIRST]) == [False, False], kind


def test_the_url_is_recorded_with_the_next_pages_if_the_server_failed(worker: Worker) -> None:
    """The claim of the version is gone by then: its job alone would not do it."""
    worker.claim(VERSION, OURS)
    steps = worker.steps(JobKind.CONFIRM, VERSION)
    confirm = next(steps)
    assert confirm.operation is not None
    steps.send(worker.bloom.run(confirm.operation))
    with pytest.raises(StorageError):
        steps.throw(StorageError("the server has gone"))
    assert worker.bloom.contains([VERSION, FIRST]) == [True, False]
    worker.apply(JobKind.CONFIRM, VERSION)
    assert worker.bloom.contains([VERSION, FIRST]) == [True, True]


def test_an_outage_records_both(worker: Worker) -> None:
    worker.apply(JobKind.RECORD, VERSION)
    assert worker.bloom.contains([VERSION, FIRST]) == [True, True]


@pytest.mark.parametrize("kind", [JobKind.CONFIRM, JobKind.RECORD])
def test_a_url_for_which_there_is_no_room_is_reported(client: redis.Redis, kind: JobKind) -> None:
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
