"""Lists of URLs that `start()` yields: remembered by a rule, read ahead, and shared by workers."""

import json
from typing import Any

import pytest
from scrapy import version_info
from support.counting import assert_ended_well, plain, spider
from support.odd_site import PLAIN_SCRAPY, LabOf, page
from support.polling import until

#: More than are looked up together, twice.
COUNT = 150
REMEMBERED: dict[str, Any] = {"BLOOM_RECRAWL_RULES": '[["", "default"]]'}
LIST = f"""
class ListSpider(OddSpider):
    async def start(self):
        for number in range({COUNT}):
            yield Request(self.settings["SITE_URL"] + f"/{{number}}")

    def parse(self, response):
        yield {{"url": response.url}}
"""


def listed(count: int = COUNT) -> dict[str, Any]:
    """Return the pages of a list."""
    return {f"/{number}": page() for number in range(count)}


# -- remembered --


@pytest.mark.parametrize("remember", ["scheduled", "crawled"])
def test_a_rule_remembers_a_list(lab_of: LabOf, remember: str) -> None:
    lab = lab_of(listed())
    settings = {**REMEMBERED, "BLOOM_REMEMBER": remember}
    first, second = (lab.crawl(LIST, **settings) for _ in range(2))
    assert first.hits == dict.fromkeys(lab.site.pages, 1)
    assert first.stats["bloom/round_trips"] < COUNT / 4
    assert not second.hits
    assert second.stats["bloom/duplicates"] == second.stats["dupefilter/filtered"] == COUNT
    assert second.stats["bloom/round_trips"] + second.stats["bloom/async_round_trips"] < COUNT / 4
    assert f"nothing was new, because all {COUNT} start requests are remembered" in second.log
    assert "listing pages" not in second.log
    assert_ended_well(second)


def test_without_a_rule_each_run_fetches_a_list_and_the_second_one_says_it(lab_of: LabOf) -> None:
    lab = lab_of(listed())
    first, second = (lab.crawl(LIST) for _ in range(2))
    assert first.hits == second.hits == dict.fromkeys(lab.site.pages, 1)
    assert "bloom-same-starts" not in first.log
    assert f"no rule matches {COUNT} start requests, so each run fetches them" in second.log
    lab.site.pages["/0"] = page("/other")
    short = LIST.replace(f"range({COUNT})", "range(50)")
    assert all("bloom-same-starts" not in lab.crawl(short).log for _ in range(2))


def test_a_page_that_is_twice_in_a_list_is_fetched_once(lab_of: LabOf) -> None:
    code = spider("""
async def start(self):
    for path in ["/0", "/1", "/0", "/2", "/1"] * 20:
        yield Request(self.settings["SITE_URL"] + path)
""")
    hits, expected = plain(lab_of(listed(3)), code)
    done = lab_of(listed(3)).crawl(code, **REMEMBERED)
    assert done.hits == hits
    for stat in ("test/dropped", "dupefilter/filtered", "scheduler/enqueued"):
        assert done.stats[stat] == expected[stat]


IN_START = """
async def start(self):
    for number in range(3):
        yield Request(self.settings["SITE_URL"] + "/0", cb_kwargs={"number": number})
"""
IN_CALLBACK = (
    IN_START.replace("start(self)", "begin(self, response)")
    + """
async def start(self):
    yield Request(self.settings["SITE_URL"] + "/", self.begin)
"""
)


@pytest.mark.parametrize("yielding", [IN_START, IN_CALLBACK], ids=["start", "callback"])
def test_of_equal_requests_the_first_is_stored(lab_of: LabOf, yielding: str) -> None:
    """So a run that picks it up after a kill gives its callback what this run gives it."""
    code = spider(f"""{yielding}
def parse(self, response, number):
    self.crawler.stats.set_value("test/number", number)
""")
    lab = lab_of({**listed(1), "/": page()})
    lab.site.hold("/0")
    with lab.start(code, **REMEMBERED) as crawl:
        crawl.until(lambda: lab.site.held, "the page is fetched")
        stored = lab.claims()["/0"].request
        lab.site.release()
        stats = crawl.wait()
    assert json.loads(stored)["cb_kwargs"] == {"number": stats["test/number"]} == {"number": 0}


SUBCLASS = (
    LIST
    + """
from scrapy_bloom import BloomDupeFilter

class Own(BloomDupeFilter):
    def request_seen(self, request):
        return super().request_seen(request) and not request.url.endswith("/7")
"""
)


def test_a_dupefilter_of_the_project_decides_about_each_request_of_a_list(lab_of: LabOf) -> None:
    lab = lab_of(listed())
    settings = {**REMEMBERED, "DUPEFILTER_CLASS": "odd_spider.Own"}
    lab.crawl(SUBCLASS, **settings)
    second = lab.crawl(SUBCLASS, **settings)
    assert second.hits == {"/7": 1}
    assert second.stats["bloom/round_trips"] + second.stats["bloom/async_round_trips"] < COUNT / 4
    assert second.stats["bloom/duplicates"] == COUNT


# -- as plain Scrapy does --

STARTS = {
    "waits": """
async def start(self):
    for number in range(8):
        if number % 3 == 2:
            await asyncio.sleep(0.05)
        yield self.request(number)
""",
    "waits until few requests are queued": """
async def start(self):
    for number in range(40):
        if self.crawler.engine.needs_backout():
            await self.crawler.signals.wait_for(signals.scheduler_empty)
        yield self.request(number)
""",
    "waits for its own page": """
async def start(self):
    self.came = asyncio.Event()
    yield self.request(0)
    await self.came.wait()
    yield self.request(1)

def parse(self, response):
    self.came.set()
""",
    "raises": """
async def start(self):
    for number in range(5):
        yield self.request(number)
    raise RuntimeError("no more rows")
""",
    "closes the spider": """
async def start(self):
    for number in range(5):
        yield self.request(number)
    await asyncio.sleep(0.5)
    raise CloseSpider("enough")
""",
    "yields items": """
async def start(self):
    for number in range(5):
        yield self.request(number)
        yield {"number": number}
""",
    "yields offsite requests": """
async def start(self):
    for number in range(5):
        yield self.request(number)
        yield Request(f"http://elsewhere.invalid/{number}")
""",
    "is a list": """
async def start(self):
    return [self.request(0)]
""",
    "yields nothing": """
async def start(self):
    return
    yield
""",
}
REQUEST = """
from scrapy.exceptions import CloseSpider
"""
METHOD = """
def request(self, number):
    return Request(self.settings["SITE_URL"] + f"/{number}")
"""
#: Stats that must be the same as with Scrapy's own filter.
SAME = (
    *("finish_reason", "item_scraped_count", "scheduler/enqueued", "offsite/filtered"),
    *("spider_exceptions/count", "spider_exceptions/RuntimeError", "log_count/ERROR"),
)


@pytest.mark.parametrize("body", STARTS.values(), ids=STARTS)
def test_any_start_goes_as_in_plain_scrapy(lab_of: LabOf, body: str) -> None:
    code = REQUEST + spider(METHOD + body)
    hits, expected = plain(lab_of(listed(40)), code)
    done = lab_of(listed(40)).crawl(code, **REMEMBERED)
    assert done.hits == hits
    assert [done.stats.get(name) for name in SAME] == [expected.get(name) for name in SAME]
    assert "never retrieved" not in done.log
    assert not done.claims


def test_requests_of_a_list_keep_their_order(lab_of: LabOf) -> None:
    labs = lab_of(listed()), lab_of(listed())
    labs[0].crawl(LIST, CONCURRENT_REQUESTS=1, **PLAIN_SCRAPY)
    labs[1].crawl(LIST, CONCURRENT_REQUESTS=1, **REMEMBERED)
    orders = [[fetch.path for fetch in lab.site.fetches] for lab in labs]
    assert orders[0] == orders[1]


def test_requests_that_no_rule_matches_are_not_read_ahead(lab_of: LabOf) -> None:
    """`start()` may look at what the crawl has done before it yields the next one."""
    code = spider("""
async def start(self):
    for number in range(20):
        yield Request(self.settings["SITE_URL"] + f"/{number}")
        seen = self.crawler.stats.get_value("scheduler/enqueued")
        assert seen == number + 1, (seen, number)
""")
    assert_ended_well(lab_of(listed(20)).crawl(code))


# -- stopped --

IS_OLD = version_info < (2, 14)


def test_an_endless_list_ends_with_its_crawl(lab_of: LabOf) -> None:
    """It yields requests as long as few are queued: else, plain Scrapy doesn't end either."""
    lab = lab_of({})
    lab.site.rest = lambda _: page()
    code = spider("""
async def start(self):
    number = 0
    while True:
        number += 1
        if self.crawler.engine.needs_backout():
            await self.crawler.signals.wait_for(signals.scheduler_empty)
        yield Request(self.settings["SITE_URL"] + f"/{number}")
""")
    done = lab.crawl(code, CLOSESPIDER_PAGECOUNT=100, **REMEMBERED)
    assert done.stats["finish_reason"] == "closespider_pagecount"
    assert "ERROR" not in done.log or IS_OLD  # whose own task is never awaited
    assert len(done.hits) >= 100


WAITING = """
class ListSpider(OddSpider):
    async def start(self):
        import asyncio
        try:
            for number in range(3):
                yield Request(self.settings["SITE_URL"] + f"/{number}")
            await asyncio.sleep(1_000)
        finally:
            self.logger.info("start() has ended")
"""


@pytest.mark.parametrize("settings", [{}, REMEMBERED, PLAIN_SCRAPY], ids=["run", "rule", "plain"])
def test_a_start_that_waits_ends_with_its_crawl(lab_of: LabOf, settings: dict[str, Any]) -> None:
    lab = lab_of(listed(3))
    done = lab.crawl(WAITING, CLOSESPIDER_PAGECOUNT=3, **settings)
    assert done.hits.keys() == lab.site.pages.keys()
    assert "start() has ended" in done.log or IS_OLD
    assert "ERROR" not in done.log


# -- interrupted --

WAYS: dict[str, dict[str, Any]] = {
    "crawled": {},
    "delivered": {"BLOOM_REMEMBER": "delivered", "FEEDS": {"items.jsonl": {"format": "jsonl"}}},
    "items only": {"BLOOM_ITEMS_ONLY": True},
    "JOBDIR": {"JOBDIR": "../job"},
}
DOWNLOADS = 4


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("kills", [True, False], ids=["kill", "Ctrl-C"])
def test_the_next_run_fetches_the_rest_of_an_interrupted_list(
    lab_of: LabOf, settings: dict[str, Any], kills: bool
) -> None:
    lab = lab_of(listed())
    settings = {**REMEMBERED, **settings, "CONCURRENT_REQUESTS": DOWNLOADS}
    is_delivered = "BLOOM_REMEMBER" in settings  # its feed is stored when the crawl ends
    with lab.midway(50, LIST, **settings) as crawl:
        if kills:
            until(lambda: is_delivered or len(lab.recorded()) == 50, "all others are done")
            crawl.kill()
        else:
            crawl.ask_to_stop()
            lab.site.release()
            crawl.wait()
    lab.site.release()
    done = lab.crawl(LIST, **settings)
    assert not lab.missing()
    # Those in progress. The files of a JOBDIR may have some more, because a kill damages them.
    most = (50 if is_delivered else DOWNLOADS) + DOWNLOADS if kills else 0
    assert len(lab.fetched_twice()) <= most
    assert not done.claims
    assert lab.recorded() == lab.site.pages.keys()
