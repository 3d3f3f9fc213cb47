"""scrapy-redis's scheduler, driven by hand: without an engine, as its own tests do."""

from collections.abc import Callable
from unittest.mock import Mock

import pytest
import redis
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from scrapy_redis.scheduler import Scheduler
from support.dupefilters import shut
from support.loops import in_loop
from support.servers import Server

from scrapy_bloom import BloomDupeFilter

URL = "https://example.com/"
Open = Callable[[], Scheduler]


@pytest.fixture(params=["scheduled", "crawled"])
def open_scheduler(request: pytest.FixtureRequest, server: Server, client: redis.Redis) -> Open:
    """Open a scheduler of the same spider, each time with a crawler of its own."""

    def build() -> Scheduler:
        settings = {
            "DUPEFILTER_CLASS": BloomDupeFilter,
            "REDIS_URL": server.url,
            "BLOOM_CAPACITY": 10_000,
            "BLOOM_REMEMBER": request.param,
        }
        crawler = get_crawler(Spider, settings)
        spider = crawler._create_spider("shop")  # and crawler.spider is None
        spider.log = Mock()  # type: ignore[method-assign]
        scheduler = Scheduler.from_crawler(crawler)
        scheduler.stats = None  # it calls what Scrapy 2.14 warns of
        scheduler.open(spider)
        return scheduler

    return build


@in_loop
async def test_a_scheduler_filters_and_hands_out(open_scheduler: Open, client: redis.Redis) -> None:
    scheduler = open_scheduler()
    assert len(scheduler) == 0
    request = Request(URL)
    assert scheduler.enqueue_request(request)
    assert scheduler.has_pending_requests()
    assert not scheduler.enqueue_request(request)
    assert not scheduler.enqueue_request(Request(URL))
    assert len(scheduler) == 1
    assert scheduler.next_request().url == URL
    assert scheduler.next_request() is None
    assert not scheduler.has_pending_requests()
    scheduler.close("finished")
    await shut(scheduler.df)


@in_loop
async def test_a_persistent_scheduler_is_opened_again(
    open_scheduler: Open, client: redis.Redis
) -> None:
    """The same object, as scrapy-redis's own test does, and by another process."""
    scheduler = open_scheduler()
    scheduler.persist = True
    assert scheduler.enqueue_request(Request(f"{URL}1"))
    assert scheduler.enqueue_request(Request(f"{URL}2"))
    scheduler.close("finished")
    scheduler.open(scheduler.spider)
    assert len(scheduler) == 2
    assert not scheduler.enqueue_request(Request(f"{URL}2"))
    scheduler.close("finished")
    await shut(scheduler.df)
    second = open_scheduler()
    second.persist = True
    assert len(second) == 2
    assert not second.enqueue_request(Request(f"{URL}1"))
    assert second.enqueue_request(Request(f"{URL}3"))
    assert {second.next_request().url for _ in range(3)} == {f"{URL}{n}" for n in (1, 2, 3)}
    second.persist = False
    second.close("finished")
    assert len(second) == 0
    await shut(second.df)
