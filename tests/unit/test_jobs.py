"""The order of queued writes, and which pages are not recorded with them."""

from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.crawl.apply_jobs import JobApplier
from scrapy_bloom.crawl.jobs import Job, JobKind, JobQueue, freeing_first, group

KINDS = (JobKind.HOLD, JobKind.CONFIRM, JobKind.RELEASE)
jobs = st.builds(Job, st.sampled_from(KINDS), st.sampled_from("ab"), st.sampled_from([b"1", b"2"]))


def batches(queue: JobQueue, most: int) -> list[list[Job]]:
    """Take all batches of a queue."""
    found = []
    while queue:
        found.append(queue.first_batch(most))
        queue.take(found[-1])
    return found


def queue_of(*jobs: Job) -> JobQueue:
    queue = JobQueue()
    for job in jobs:
        queue.put(job)
    return queue


def test_claims_that_pages_alternate_with_are_held_together() -> None:
    held = [Job(JobKind.HOLD, "a", b"%d" % number) for number in range(9)]
    crawled = [Job(JobKind.CONFIRM, "a", b"-%d" % number) for number in range(9)]
    queue = queue_of(*(job for pair in zip(held, crawled, strict=True) for job in pair))
    assert batches(queue, 100) == [held, crawled]


@given(st.lists(jobs, max_size=12), st.integers(1, 12))
def test_jobs_on_a_url_keep_their_order_and_batches_are_of_one_kind(
    put: list[Job], most: int
) -> None:
    queue = queue_of(*put)
    found = batches(queue, most)
    assert all(len({group(job) for job in batch}) == 1 for batch in found)
    taken = [job for batch in found for job in batch]
    for place in {(job.window, job.item) for job in put}:
        own = [[job for job in all_ if (job.window, job.item) == place] for all_ in (put, taken)]
        assert own[0] == own[1]
    others = [[job for job in all_ if job.kind is not JobKind.HOLD] for all_ in (put, taken)]
    assert others[0] == others[1]
    assert queue.length == 0


def test_claims_that_come_during_a_round_wait_for_the_next_one() -> None:
    """The writer takes as many jobs as there were: else holds could keep all others waiting."""
    queue = queue_of(Job(JobKind.HOLD, "a", b"1"), Job(JobKind.CONFIRM, "a", b"2"))
    queue.take(queue.first_batch(2))
    queue.put(Job(JobKind.HOLD, "a", b"3"))
    assert queue.first_batch(1) == [Job(JobKind.CONFIRM, "a", b"2")]


def test_a_full_server_gets_memory_back_before_more_is_asked_of_it() -> None:
    """Jobs on one item keep their order, and no page is settled before its links are claimed."""
    new, link = Job(JobKind.CLAIM, "a", b"new"), Job(JobKind.CLAIM, "a", b"link")
    crawled, old = Job(JobKind.CONFIRM, "a", b"new"), Job(JobKind.RELEASE, "a", b"old")
    assert freeing_first([new, crawled, old]) == ([old], [new, crawled])
    page, leaf = Job(JobKind.CONFIRM, "a", b"page", is_last=True), Job(JobKind.CONFIRM, "a", b"x")
    assert freeing_first([link, page, leaf]) == ([leaf], [link, page])


def test_a_page_whose_link_others_may_lose_is_not_recorded_nor_one_that_waited_for_it() -> None:
    applier = JobApplier.__new__(JobApplier)
    applier._doubtful = set()
    link = Job(JobKind.CLAIM, "a", b"link", page=field_of(b"page"))
    applier._note_doubtful([link], [Verdict.OTHERS_UNKEPT])
    page = Job(JobKind.CONFIRM, "a", b"page", waiting=(field_of(b"waits"),))
    waits, other = (Job(JobKind.CONFIRM, "a", item) for item in (b"waits", b"other"))
    assert [applier._is_doubtful(job) for job in (page, waits, other)] == [True, True, False]
