"""BLOOM_REMEMBER = "items" in real crawls: pages without an item are read in each run."""

from collections import Counter

import pytest
import redis
from scrapy import Request
from support.dupefilters import URL, Make, shut
from support.loops import in_loop
from support.odd_site import ERROR, MISSING, Done, LabOf, Reply, moved, page

ITEMS = """
from scrapy import Request
from support.odd_site import OddSpider

class ItemSpider(OddSpider):
    custom_settings = {"BLOOM_REMEMBER": "items"}

    def parse(self, response):
        if b"story" in response.body:
            yield {"url": response.url}
        yield from self.links(response, errback=self.failed)

    def failed(self, failure):
        if failure.value.response.url.endswith("/reported"):
            yield {"url": failure.value.response.url}
"""


def story(*links: str, **kwargs: object) -> Reply:
    """A page of which the spider makes an item."""
    return Reply(links, text="story", **kwargs)  # type: ignore[arg-type]


NEWS: dict[str, Reply | tuple[Reply, ...]] = {
    "/": page("/list", "/about"),
    "/list": page("/list2", "/a", "/b", "/to-a", "/to-list", "/gone", "/"),
    "/list2": page("/list", "/c", "/broken"),
    "/about": page("/list", "/list2"),
    **{name: story("/list", "/list2", "/a", "/b", "/c") for name in ("/a", "/b", "/c", "/new")},
    "/to-a": moved("/only-by-redirect"),
    "/only-by-redirect": story(),
    "/to-list": moved("/list"),
    "/gone": MISSING,
    "/broken": (ERROR, ERROR, ERROR, story()),
}
LISTINGS = Counter(["/", "/list", "/list2", "/about", "/to-list"])


@pytest.fixture(scope="module")
def news(lab_of: LabOf) -> tuple[Done, Done]:
    """Two runs; in between, a story is published."""
    lab = lab_of(NEWS)
    first = lab.crawl(ITEMS)
    lab.site.pages["/list2"] = page("/list", "/c", "/new", "/broken")
    return first, lab.crawl(ITEMS)


def test_pages_with_an_item_are_recorded(news: tuple[Done, Done]) -> None:
    """Also the source of a redirect that leads to one, and pages that are not there.

    The next run reads the listings, and crawls what is new. None reads a page twice.
    """
    first, second = news
    stories = {"/a", "/b", "/c", "/to-a", "/only-by-redirect", "/gone"}
    assert first.recorded == stories
    assert {path: n for path, n in first.hits.items() if n > 1} == {"/broken": 3}
    assert second.recorded == stories | {"/new"}
    assert second.hits == LISTINGS + Counter(["/new"])
    assert second.stats["item_scraped_count"] == 1


def test_the_stats_count_pages_without_an_item(news: tuple[Done, Done]) -> None:
    """Of the redirect to a listing, which is known, nothing more is known."""
    for done, crawled in zip(news, (10, 5), strict=True):
        assert done.stats["bloom/without_item"] == 4
        assert done.stats["bloom/crawled"] == crawled
        # A failed page waits for its time.
        assert {path: claim.kind for path, claim in done.claims.items()} == {"/broken": "-"}
        assert "Traceback" not in done.log


def test_an_item_of_an_errback_counts(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/reported", "/silent")})
    lab.site.pages |= {"/reported": Reply(status=403), "/silent": Reply(status=403)}
    done = lab.crawl(ITEMS, BLOOM_CRAWLED_STATUSES="200,403")
    assert done.recorded == {"/reported", "/silent"}  # errors: they list nothing


ASYNCHRONOUS = ITEMS.replace("def parse(", "async def parse(").replace(
    "yield from self.links(response, errback=self.failed)",
    "for request in self.links(response): yield request",
)


def test_items_are_noticed_one_by_one_and_in_asynchronous_callbacks(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/list"), "/list": page("/a", "/"), "/a": story("/list")})
    assert lab.crawl(ASYNCHRONOUS, BLOOM_BATCH=0).recorded == {"/a"}
    assert lab.crawl(ASYNCHRONOUS, BLOOM_BATCH=0).hits == Counter(["/", "/list"])


# -- pages whose item comes from elsewhere --

MARKED = """
from scrapy import Request
from scrapy.downloadermiddlewares.retry import get_retry_request
from support.odd_site import OddSpider

class MarkedSpider(OddSpider):
    custom_settings = {"BLOOM_REMEMBER": "items"}

    def parse(self, response):
        path = response.url.removeprefix(self.settings["SITE_URL"])
        if path == "/product":
            response.meta["bloom_has_item"] = True
            yield response.follow("/reviews", self.parse_reviews, cb_kwargs={"item": {"name": 1}})
            return
        if path == "/category":
            response.meta["bloom_has_item"] = False
            yield {"category": 1}
        if path == "/soft-ban":
            if b"try again" in response.body:
                yield get_retry_request(response.request, spider=self, reason="banned")
                return
            yield {"url": response.url}
        marks = {"/odd-mark": "yes", "/given": True}
        for request in self.links(response):
            mark = marks.get(request.url.removeprefix(self.settings["SITE_URL"]))
            if mark is not None:
                request.meta["bloom_has_item"] = mark
            yield request

    def parse_reviews(self, response, item):
        yield item
"""


@pytest.fixture(scope="module")
def marked(lab_of: LabOf) -> tuple[Done, Done]:
    lab = lab_of({
        "/": page("/product", "/category", "/soft-ban", "/odd-mark", "/given", "/to-given"),
        "/soft-ban": (Reply(text="try again"), page()),
        "/to-given": moved("/given-target"),
        **dict.fromkeys(
            ("/product", "/reviews", "/category", "/odd-mark", "/given", "/given-target"), page()
        ),
    })  # fmt: skip
    return lab.crawl(MARKED), lab.crawl(MARKED)


def test_meta_says_whether_a_page_has_an_item(marked: tuple[Done, Done]) -> None:
    """By its link or in the callback; a further request's page counts by its own item."""
    first, second = marked
    assert first.recorded == {"/product", "/reviews", "/given", "/soft-ban"}
    assert second.hits == Counter(["/", "/category", "/odd-mark", "/to-given", "/given-target"])


def test_a_wrong_mark_is_named_once(marked: tuple[Done, Done]) -> None:
    first, _ = marked
    assert first.log.count("[bloom-bad-has-item]") == 1
    assert "meta['bloom_has_item']" in first.log


def test_a_retry_from_a_callback_counts_for_its_page(marked: tuple[Done, Done]) -> None:
    """The retry has dont_filter, so it is not recorded itself."""
    first, second = marked
    assert first.hits["/soft-ban"] == 2
    assert second.hits["/soft-ban"] == 0


# -- listings with a link that cannot be stored, and fails --

FAILING = """
from support.odd_site import OddSpider

class FailingSpider(OddSpider):
    custom_settings = {"BLOOM_REMEMBER": "items", "RETRY_ENABLED": False}

    def parse(self, response):
        if b"story" in response.body:
            yield {"url": response.url}
        for request in self.links(response):
            path = request.url.removeprefix(self.settings["SITE_URL"])
            if path in self.settings["LAMBDAS"].split():
                request = request.replace(callback=lambda response: self.parse(response))
            yield request
"""


@pytest.mark.parametrize(
    ("lambdas", "link", "batch"),
    [("/list {}", "/fails", 64), pytest.param("{}", "/to-fails", 0, marks=pytest.mark.slow)],
)
def test_a_listing_is_read_in_each_run_although_its_link_failed(
    lab_of: LabOf, lambdas: str, link: str, batch: int
) -> None:
    """Its request cannot be stored, so only the listing can yield it again."""
    lab = lab_of({
        "/": page("/above"),
        "/above": page("/list", "/other"),
        "/other": page("/above", "/list", "/a"),
        "/a": story("/above"),
        "/to-fails": moved("/fails"),
        "/fails": ERROR,
    })  # fmt: skip
    listings = Counter(["/", "/above", "/other", "/list"])
    given = {"LAMBDAS": lambdas.format(link), "BLOOM_BATCH": batch}
    for number in range(7):  # more often than a page is tried by itself
        new = f"/{number}"
        lab.site.pages |= {"/list": page("/above", "/other", "/a", link, new), new: story()}
        hits = lab.crawl(FAILING, **given).hits - Counter(["/a", "/to-fails", "/fails"])
        assert hits == listings + Counter([new])
    failed = lab.site.hits()
    assert (failed["/a"], failed["/fails"]) == (1, 1)


# -- kills, outages, other workers --


@pytest.mark.parametrize(("remember", "is_seen"), [("items", True), ("crawled", False)])
@in_loop
async def test_a_worker_pushes_a_page_once_to_a_shared_queue(
    make: Make, client: redis.Redis, remember: str, is_seen: bool
) -> None:
    """Another worker may crawl it, find no item and end its claim: only that worker knows."""
    dupefilter = make(
        SCHEDULER="scrapy_redis.scheduler.Scheduler",
        SCHEDULER_PERSIST=True,
        BLOOM_REMEMBER=remember,
    )
    assert not dupefilter.request_seen(Request(URL))
    for claims in client.scan_iter("*:claims"):
        client.delete(claims)
    assert dupefilter.request_seen(Request(URL)) is is_seen
    await shut(dupefilter)
