"""What callbacks yield is looked up in rounds, and goes on as with Scrapy's own filter."""

from collections import Counter

import pytest
from support.counting import COUNTING, assert_ended_well, spider
from support.odd_site import PLAIN, LabOf, kinds, page, star


def test_many_links_take_few_round_trips(lab_of: LabOf) -> None:
    lab = lab_of(star(500))
    done = lab.crawl(BLOOM_REMEMBER="scheduled")
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.stats["bloom/async_round_trips"] < 50


WAITING = """
async def parse(self, response):
    import gc
    self.fetched = asyncio.Queue()
    yield response.follow("/first", priority=1, callback=self.note)
    for _ in range(3):
        await asyncio.sleep(0)
    yield response.follow("/second", dont_filter=True, callback=self.note)
    order = [await self.fetched.get(), await self.fetched.get()]
    self.crawler.stats.set_value("test/order", order)
    for number in range(60):
        yield response.follow(f"/{number}", callback=self.note)
        await self.fetched.get()
    tasks = [one for one in gc.get_objects() if type(one) is asyncio.Task]
    self.crawler.stats.set_value("test/tasks", len(tasks))

def note(self, response):
    self.fetched.put_nowait(response.url[-6:])
"""


def test_a_callback_may_wait_for_what_it_has_yielded(lab_of: LabOf) -> None:
    """It gets that in its order, and may go on as long as the crawl."""
    lab = lab_of({"/": page(), "/first": page(), "/second": page()})
    lab.site.pages |= {f"/{number}": page() for number in range(60)}
    done = lab.crawl(spider(WAITING), CONCURRENT_REQUESTS=1)
    assert done.hits == Counter(lab.site.pages.keys())
    assert done.stats["test/order"] == ["/first", "second"]
    assert done.stats["test/tasks"] < 40
    assert_ended_well(done)


REWRITING = """
class Middleware:
    async def process_spider_output(self, response, result, spider=None):
        async for output in result:
            if response.url.endswith("/c"):
                output = output.replace(url=response.urljoin("/other"))
            yield output

class RewritingSpider(OddSpider):
    custom_settings = {"SPIDER_MIDDLEWARES": {Middleware: 1}}
"""


LOGGING = """
from scrapy_bloom import BloomDupeFilter
log = BloomDupeFilter.log
BloomDupeFilter.log = lambda *args: log(*args)
"""


@pytest.mark.parametrize(
    ("code", "limit"),
    [(REWRITING, 0), (COUNTING, 0), (LOGGING + PLAIN, 0), (PLAIN, 9), (PLAIN, 0)],
)
def test_only_what_sees_known_duplicates_gets_them(lab_of: LabOf, code: str, limit: int) -> None:
    """A middleware may make other requests of them. The first one is logged with its referer."""
    lab = lab_of({"/": page("/known", "/a"), "/known": page(), "/a": page("/known", "/c")})
    lab.site.pages |= {"/c": page("/known"), "/other": page()}
    is_rewritten, is_seen = code is REWRITING, bool(limit) or code is not PLAIN
    done = lab.crawl(code, CONCURRENT_REQUESTS=1, LOG_LEVEL="DEBUG", DEPTH_LIMIT=limit)
    assert done.hits == Counter(lab.site.pages.keys() - (set() if is_rewritten else {"/other"}))
    assert done.stats["bloom/duplicates"] == done.stats["dupefilter/filtered"] == 2 - is_rewritten
    assert f"/known> (referer: {lab.site.url}/a)" in done.log
    assert done.stats["request_depth_max"] == 2 + is_seen  # a middleware counts it
    assert_ended_well(done)


FAILING = """
from scrapy.utils.request import RequestFingerprinter

class Fingerprinter(RequestFingerprinter):
    def fingerprint(self, request):
        if request.url.endswith("/broken"):
            raise LookupError
        return super().fingerprint(request)

class FailingSpider(OddSpider):
    custom_settings = {"REQUEST_FINGERPRINTER_CLASS": Fingerprinter}
"""


def test_a_page_whose_outputs_are_not_all_scheduled_is_not_remembered(lab_of: LabOf) -> None:
    """A link has no fingerprint. Other links are crawled."""
    lab = lab_of({"/": page("/unknown"), "/unknown": page("/a", "/broken", "/b")})
    lab.site.pages |= {"/a": page(), "/b": page()}
    done = lab.crawl(FAILING)
    assert done.hits == Counter(lab.site.pages.keys())
    assert kinds(done.claims) == {"/unknown": "-"}
    assert done.recorded == {"/a", "/b"}
