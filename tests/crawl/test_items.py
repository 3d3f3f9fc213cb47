"""BLOOM_ITEMS_ONLY in real crawls: pages without an item are read in each run."""

from collections import Counter

from support.odd_site import ERROR, MISSING, LabOf, Reply, moved, page

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
        assert {path: claim.kind for path, claim in done.claims.items()} == {"/broken": "-"}
        assert "Traceback" not in done.log


def test_an_item_of_an_errback_counts(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/reported", "/silent")})
    lab.site.pages |= {"/reported": Reply(status=403), "/silent": Reply(status=403)}
    done = lab.crawl(ITEMS, BLOOM_CRAWLED_STATUSES="200,403")
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
    assert first.log.count("[bloom-bad-has-item]") == 1
    assert "meta['bloom_has_item']" in first.log
