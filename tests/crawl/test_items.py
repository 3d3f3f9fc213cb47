"""Items in real crawls: of pages with BLOOM_ITEMS_ONLY, and those of which a pipeline raises."""

from collections import Counter
from typing import Any

import pytest
from scrapy import version_info
from support.odd_site import ERROR, MISSING, SHARED_QUEUE, Lab, LabOf, Reply, kinds, moved, page

ITEMS = """
class ItemSpider(OddSpider):
    custom_settings = {"BLOOM_ITEMS_ONLY": True}

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


def test_pages_with_an_item_are_recorded(lab_of: LabOf) -> None:
    """Also the source of a redirect that leads to one, and pages that are not there.

    The next run reads the listings, and crawls what is new. None reads a page twice.
    """
    lab = lab_of(NEWS)
    first = lab.crawl(ITEMS)
    lab.site.pages["/list2"] = page("/list", "/c", "/new", "/broken")
    second = lab.crawl(ITEMS)
    stories = {"/a", "/b", "/c", "/to-a", "/only-by-redirect", "/gone"}
    assert first.recorded == stories
    assert {path: n for path, n in first.hits.items() if n > 1} == {"/broken": 3}
    assert second.recorded == stories | {"/new"}
    assert second.hits == LISTINGS + Counter(["/new"])
    assert second.stats["item_scraped_count"] == 1
    for done, crawled in ((first, 10), (second, 5)):
        # Of the redirect to a listing, which is known, nothing more is known.
        assert done.stats["bloom/without_item"] == 4
        assert done.stats["bloom/crawled"] == crawled
        # A failed page waits for its time.
        assert kinds(done.claims) == {"/broken": "-"}
        assert "Traceback" not in done.log


def test_an_item_of_an_errback_counts(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/reported", "/silent")})
    lab.site.pages |= {"/reported": Reply(status=403), "/silent": Reply(status=403)}
    done = lab.crawl(ITEMS, BLOOM_CRAWLED_HTTP_CODES="200,403")
    assert done.recorded == {"/reported", "/silent"}  # errors: they list nothing


# -- pages whose item comes from elsewhere --

MARKED = """
class MarkedSpider(OddSpider):
    custom_settings = {"BLOOM_ITEMS_ONLY": True}

    def parse(self, response):
        path = response.url.removeprefix(self.settings["SITE_URL"])
        if path == "/product":
            response.meta["bloom_has_item"] = True
            yield response.follow("/reviews", self.parse_reviews, cb_kwargs={"item": {"name": 1}})
            return
        if path == "/category":
            response.meta["bloom_has_item"] = False
            yield {"category": 1}
        marks = {"/odd-mark": "yes", "/given": True}
        for request in self.links(response):
            mark = marks.get(request.url.removeprefix(self.settings["SITE_URL"]))
            if mark is not None:
                request.meta["bloom_has_item"] = mark
            yield request

    def parse_reviews(self, response, item):
        yield item
"""


def test_meta_says_whether_a_page_has_an_item(lab_of: LabOf) -> None:
    """By its link or in the callback; a further request's page counts by its own item."""
    lab = lab_of({
        "/": page("/product", "/category", "/odd-mark", "/given", "/to-given"),
        "/to-given": moved("/given-target"),
        **dict.fromkeys(
            ("/product", "/reviews", "/category", "/odd-mark", "/given", "/given-target"), page()
        ),
    })  # fmt: skip
    first, second = lab.crawl(MARKED), lab.crawl(MARKED)
    assert first.recorded == {"/product", "/reviews", "/given"}
    assert second.hits == Counter(["/", "/category", "/odd-mark", "/to-given", "/given-target"])
    assert first.log.count("so it is ignored. Set it to True") == 1
    assert "meta['bloom_has_item']" in first.log


# -- item pipelines that raise: the pages of such items have failed --

PIPELINES = """
from scrapy.exceptions import CloseSpider, DropItem
from twisted.internet.task import deferLater

WRONG = {"DOWN": ConnectionError, "DROPPED": DropItem, "CLOSING": CloseSpider}

class Plain(Keep):
    def process_item(self, item, spider=None):
        for setting, error in WRONG.items():
            if item["path"] in self.crawler.settings.getlist(setting):
                raise error("wrong")
        return super().process_item(item)

class Late(Plain):
    def process_item(self, item, spider=None):
        from twisted.internet import reactor
        return deferLater(reactor, 0.05, super().process_item, item)

class Shop(OddSpider):
    custom_settings = {"ITEM_PIPELINES": {CHOSEN: 1}}

    def parse(self, response):
        path = "/" + response.url.partition("://")[2].partition("/")[2]
        yield {"path": "", "name": f"{path} 1"}  # of each page, one is stored
        yield {"path": path, "name": f"{path} 0"}
        yield from self.links(response, errback=self.failed)

    def failed(self, failure):
        yield {"path": "/denied", "name": "/denied"}
"""
PATHS = {f"/{number}" for number in range(10)}
BROKEN = {"/1", "/5", "/8"}


def take(lab: Lab) -> set[str]:
    """Return the names of the items since the last call."""
    names = {item["name"] for item in lab.items()}
    (lab.directory / "items").unlink()
    return names


@pytest.mark.parametrize(
    ("pipeline", "more"),
    [("Plain", {}), ("Late", {**SHARED_QUEUE, "BLOOM_ITEMS_ONLY": True})],
)
def test_the_next_run_gets_the_items_of_which_a_pipeline_has_raised(
    lab_of: LabOf, pipeline: str, more: dict[str, Any]
) -> None:
    """CloseSpider is such an error, too, and closes nothing; DropItem is none."""
    lab = lab_of({"/": page(*sorted(PATHS)), **{path: page("/") for path in PATHS}})
    code = PIPELINES.replace("CHOSEN", pipeline)
    done = lab.crawl(code, DOWN="/1,/5", CLOSING="/8", DROPPED="/2,/3", **more)
    assert done.stats["finish_reason"] == "finished"
    assert done.stats["bloom/failed"] == 3
    assert {path: claim.attempt for path, claim in done.claims.items()} == dict.fromkeys(BROKEN, 1)
    assert done.recorded & PATHS == PATHS - BROKEN
    assert {f"{path} 0" for path in PATHS - BROKEN - {"/2", "/3"}} <= take(lab)
    lab.make_due()
    done = lab.crawl(code, **more)
    assert done.hits.keys() - {"/", "/robots.txt"} == BROKEN
    assert not done.claims
    assert done.recorded >= PATHS
    assert take(lab) - {"/ 0", "/ 1"} == {f"{path} {item}" for path in BROKEN for item in (0, 1)}


@pytest.mark.skipif(version_info < (2, 13, 2), reason="2.13.0 drops what errbacks yield")
def test_an_item_of_an_errback_whose_pipeline_raises_is_tried_again(lab_of: LabOf) -> None:
    """Its page, which robots.txt forbids, would count as dropped."""
    robots = Reply(text="User-agent: *\nDisallow: /denied")
    lab = lab_of({"/": page("/denied"), "/denied": page(), "/robots.txt": robots})
    code = PIPELINES.replace("CHOSEN", "Plain")
    done = lab.crawl(code, ROBOTSTXT_OBEY=True, DOWN="/denied")
    assert done.claims.keys() == {"/denied"}
    assert "/denied" not in take(lab)
    lab.make_due()
    lab.crawl(code, ROBOTSTXT_OBEY=True)
    assert "/denied" in take(lab)
