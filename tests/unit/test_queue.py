"""The claims of queued requests, which are in their meta."""

from scrapy import Request

from scrapy_bloom.crawl.queue import Queue, set_claims


def test_a_request_whose_meta_was_emptied_is_given_to_no_other_worker() -> None:
    queue, kept, emptied = Queue([]), Request("https://a.example"), Request("https://b.example")
    for name, request in ((b"b", emptied), (b"a", kept)):
        set_claims(request, {("default", name): True})
        queue.put(request)
    emptied.meta.clear()
    assert queue.store(emptied) is None
    assert queue.give(2) == {("default", b"a"): kept}
