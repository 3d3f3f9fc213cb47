"""Spiders whose requests cannot be stored as JSON, interrupted in every way: no page is lost.

Such a request has a claim without the request, so no other worker can crawl it. The page that
yielded it must be crawled again, and therefore keeps its own claim until the request is settled.
"""

import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from support.ends import ENDS
from support.matrix import mostly_slow
from support.odd_site import ERROR, Done, Lab, LabOf, Pages, moved, page, tree
from support.polling import until

PAGES = 40


# -- spiders as people write them --

HEAD = """
from dataclasses import dataclass
from functools import partial

from scrapy import FormRequest, Request, Spider
from scrapy.exceptions import CloseSpider
from scrapy.http import JsonRequest, XmlRpcRequest
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule


class Base:
    name = "odd"
    allowed_domains = ("127.0.0.1",)
    custom_settings = {"CONCURRENT_REQUESTS": 4}
    pages = 0

    async def start(self):
        yield Request(self.settings["SITE_URL"] + "/", dont_filter=True)

    def item(self, response):
        yield {"url": response.url}
        self.pages += 1
        if self.pages == self.settings.getint("STOP_AT"):
            raise CloseSpider("enough")

    def number(self, url):
        return int("0" + "".join(c for c in url.rpartition("/")[2] if c.isdigit()))
"""


def rules(body: str) -> str:
    """Return a CrawlSpider."""
    return f"{HEAD}\n\nclass RulesSpider(Base, CrawlSpider):\n{body}"


def plain(request: str, more: str = "", top: str = "") -> str:
    """Return a Spider that follows each link by a request.

    Args:
        request: expression that makes the request, of ``self``, ``response`` and ``url``.
        more: further methods.
        top: further classes and functions.
    """
    return f"""{HEAD}
{top}

class PlainSpider(Base, Spider):
    def parse(self, response, *args, **kwargs):
        for url in map(response.urljoin, response.css("a::attr(href)").getall()):
            yield self.request(response, url)
        yield from self.item(response)

    def request(self, response, url):
        return {request}
{more}
"""


RULES = rules('    rules = (Rule(LinkExtractor(), callback="item", follow=True),)')
LAMBDA = plain("Request(url, lambda response: self.parse(response))")
DATACLASS = plain(
    'Request(url, self.parse, cb_kwargs={"context": Context(response.url, len(url))})',
    top="@dataclass\nclass Context:\n    source: str\n    size: int\n",
)
SPIDERS = {
    "CrawlSpider, callback by name": RULES,
    "CrawlSpider, callback by method": rules(
        "    def __init__(self, *args, **kwargs):\n"
        "        self.rules = (Rule(LinkExtractor(), callback=self.item, follow=True),)\n"
        "        super().__init__(*args, **kwargs)\n"
    ),
    "CrawlSpider, callback by lambda": rules(
        "    rules = (\n"
        "        Rule(LinkExtractor(), callback=lambda r: [{'url': r.url}], follow=True),\n"
        "    )\n"
    ),
    "CrawlSpider, process_links": rules(
        "    rules = (\n"
        "        Rule(LinkExtractor(), 'item', follow=True, process_links='chosen'),\n"
        "    )\n"
        "    def chosen(self, links):\n"
        "        return sorted(links, key=lambda link: link.url)\n"
    ),
    "CrawlSpider, process_request": rules(
        "    rules = (\n"
        "        Rule(LinkExtractor(), 'item', follow=True, process_request='marked'),\n"
        "    )\n"
        "    def marked(self, request, response):\n"
        "        return request.replace(priority=self.number(request.url) % 3)\n"
    ),
    "follow_all": f"""{HEAD}

class FollowSpider(Base, Spider):
    def parse(self, response):
        yield from response.follow_all(css="a", callback=self.parse)
        yield from self.item(response)
""",
    "lambda": LAMBDA,
    "partial": plain("Request(url, partial(self.parse, response.url))")
    .replace("def parse(self, response, *args", "def parse(self, *args")
    .replace("        for url in map(", "        response = args[-1]\n        for url in map("),
    "closure": plain(
        "self.followed(url)",
        """
    def followed(self, url):
        def parse(response):
            yield from self.parse(response)
        return Request(url, parse)
""",
    ),
    "dataclass in cb_kwargs": DATACLASS,
    "object in meta": plain(
        'Request(url, self.parse, meta={"page_methods": [PageMethod("wait", "a")]})',
        top="class PageMethod:\n    def __init__(self, *args):\n        self.args = args\n",
    ),
    "forms": plain(
        "self.form(self.number(url) % 3, url, lambda response: self.parse(response))",
        """
    def form(self, kind, url, callback):
        if kind == 0:
            return FormRequest(url, callback, formdata={"field": "value"})
        if kind == 1:
            return JsonRequest(url, callback, data={"field": ["value"]})
        return XmlRpcRequest(url, callback, methodname="get", params=(1,), dont_filter=False)
""",
    ),
    "subclass of Request": plain(
        "PageRequest(url, self.parse, source=object())",
        top=(
            "class PageRequest(Request):\n"
            "    attributes = (*Request.attributes, 'source')\n"
            "    def __init__(self, *args, source=None, **kwargs):\n"
            "        self.source = source\n"
            "        super().__init__(*args, **kwargs)\n"
        ),
    ),
    "errback": plain("Request(url, self.parse, errback=lambda failure: None)"),
    "some kept": plain(
        "Request(url, (lambda r: self.parse(r)) if self.number(url) % 2 else self.parse)"
    ),
    "dont_filter": plain(
        "Request(url, lambda r: self.parse(r), dont_filter=self.number(url) % 3 == 2)"
    ),
    "listings": plain(
        "Request(url, lambda response: self.parse(response),"
        ' meta={"bloom_recrawl_after": "run"} if "/list" in url else {})'
    ),
    "chain": LAMBDA,
    "redirects": LAMBDA,
}


#: Waits 1 s, not 5 s, before it takes over what an empty queue should have.
IMPATIENT = """
from scrapy_bloom.crawl import liveness
liveness.ORPHANED_AFTER_SECONDS = 1
"""


def binary_tree(count: int) -> Pages:
    """Return a site on which each page is linked once."""
    pages = {
        f"/{n}": page(*(f"/{m}" for m in (2 * n + 1, 2 * n + 2) if m < count)) for n in range(count)
    }
    return {"/": page("/0"), **pages}


def listings(count: int) -> Pages:
    """Return a site with listings, which each page of articles links the next one of."""
    pages = {"/": page("/mid-0")}
    for number in range(count // 8):
        articles = [f"/article-{number}-{n}" for n in range(6)]
        pages |= dict.fromkeys(articles, page())
        pages[f"/mid-{number}"] = page(f"/list-{number}")
        pages[f"/list-{number}"] = page(*articles, f"/mid-{number + 1}")
    return pages | {f"/mid-{count // 8}": page()}


def redirects(count: int) -> Pages:
    """Return a tree in which each link leads to its page by a redirect."""
    site: dict[str, Any] = {}
    for path, reply in tree(count).items():
        site[path] = page(*(f"/to{link}" for link in reply.links))
        site[f"/to{path}"] = moved(path)
    return {path: reply for path, reply in site.items() if path != "/to/"}


def chain(count: int) -> Pages:
    """Return a site on which each page links the next one only."""
    pages = {f"/{n}": page(f"/{n + 1}") for n in range(count)}
    return {"/": page("/0"), **pages, f"/{count}": page()}


SITES: dict[str, Callable[[int], Pages]] = {
    "dont_filter": binary_tree,
    "listings": listings,
    "redirects": redirects,
    "chain": chain,
}


def site_of(spider: str) -> Pages:
    count = PAGES // 2 if spider in ("redirects", "chain") else PAGES
    return SITES.get(spider, tree)(count)


# -- spiders x ends x queues --


def assert_completes(lab: Lab, spider: str, *, reruns: int = 1, **settings: Any) -> None:
    """After so many runs every page was fetched; one more finds nothing new or left behind."""
    assert lab.missing()
    for _ in range(reruns):
        lab.crawl(spider, **settings)
    assert not lab.missing()
    done = lab.crawl(spider, **settings)
    assert done.hits == Counter(["/"])
    assert not done.claims
    # A crawl in a JOBDIR leaves its own entry: its queue may not be empty.
    assert all(b'"queue":"dir ' in entry for entry in done.workers.values())


@pytest.mark.parametrize(
    ("spider", "end"),
    mostly_slow(
        product(SPIDERS, ["SIGKILL", "SIGINT"]),
        lambda spider, end: end == "SIGKILL" or spider in ("lambda", "redirects"),
    ),
)
def test_the_next_run_crawls_what_is_missing(lab_of: LabOf, spider: str, end: str) -> None:
    lab, text = lab_of(site_of(spider)), SPIDERS[spider]
    ENDS[end](lab, text)
    assert_completes(lab, text)


@pytest.mark.parametrize("end", [end for end in ENDS if end not in ("SIGKILL", "SIGINT")])
@pytest.mark.parametrize(
    "spider",
    [
        pytest.param(RULES, id="CrawlSpider", marks=pytest.mark.slow),
        pytest.param(LAMBDA, id="lambda"),
        pytest.param(DATACLASS, id="dataclass", marks=pytest.mark.slow),
    ],
)
def test_however_the_crawl_has_ended(lab_of: LabOf, spider: str, end: str) -> None:
    lab = lab_of(tree(PAGES))
    ENDS[end](lab, spider)
    assert_completes(lab, spider)


@pytest.mark.parametrize("end", ["SIGKILL", pytest.param("SIGINT", marks=pytest.mark.slow)])
@pytest.mark.parametrize("spider", [RULES, LAMBDA], ids=["CrawlSpider", "lambda"])
def test_where_links_are_looked_up_one_by_one(lab_of: LabOf, spider: str, end: str) -> None:
    lab = lab_of(tree(PAGES))
    ENDS[end](lab, spider, BLOOM_BATCH=0)
    assert_completes(lab, spider, BLOOM_BATCH=0)


@pytest.mark.parametrize("end", ["SIGINT", pytest.param("page count", marks=pytest.mark.slow)])
@pytest.mark.parametrize("spider", [RULES, LAMBDA], ids=["CrawlSpider", "lambda"])
def test_in_a_jobdir_that_was_stopped(lab_of: LabOf, spider: str, end: str) -> None:
    """What Scrapy can pickle is in the JOBDIR's queue. What it cannot pickle is gone."""
    lab = lab_of(tree(PAGES))
    jobdir: dict[str, Any] = {"JOBDIR": lab.directory / "job"}
    ENDS[end](lab, spider, **jobdir)
    assert_completes(lab, spider, **jobdir)


@pytest.mark.parametrize(
    ("spider", "persist", "end"),
    [
        pytest.param(RULES, True, "SIGKILL", id="CrawlSpider, persistent, SIGKILL"),
        pytest.param(RULES, False, "SIGINT", id="CrawlSpider, wiped, SIGINT"),
        pytest.param(DATACLASS, True, "SIGINT", id="dataclass, persistent, SIGINT"),
        pytest.param(DATACLASS, False, "CloseSpider", id="dataclass, wiped, CloseSpider"),
        *(
            pytest.param(spider, persist, end, marks=pytest.mark.slow, id=f"{name}, {end}")
            for spider, name, persist, end in [
                (RULES, "CrawlSpider, persistent", True, "CloseSpider"),
                (RULES, "CrawlSpider, wiped", False, "SIGKILL"),
                (DATACLASS, "dataclass, persistent", True, "SIGKILL"),
                (DATACLASS, "dataclass, wiped", False, "SIGINT"),
            ]
        ),
    ],
)
def test_in_a_queue_of_scrapy_redis(lab_of: LabOf, spider: str, persist: bool, end: str) -> None:
    """No lambdas: scrapy-redis pickles each request, and fails to schedule those."""
    lab, spider = lab_of(tree(PAGES)), spider + IMPATIENT
    settings = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": persist,
        "REDIS_URL": lab.redis_url,
        "BLOOM_HEARTBEAT": 1,
    }
    ENDS[end](lab, spider, **settings)
    assert_completes(lab, spider, reruns=2, **settings)


# -- a crawl that is not interrupted --


@pytest.fixture(scope="module")
def undisturbed(lab_of: LabOf) -> Done:
    return lab_of(tree(PAGES)).crawl(LAMBDA)


def test_new_requests_that_are_not_kept_are_counted(undisturbed: Done) -> None:
    """Not those that are seen."""
    assert undisturbed.stats["bloom/not_kept"] == PAGES


def test_one_warning_says_that_the_page_is_fetched_again(undisturbed: Done) -> None:
    warnings = [line for line in undisturbed.log.splitlines() if " WARNING: " in line]
    (warning,) = [line for line in warnings if "not_kept" in line]
    assert "again" in warning
    assert len(warnings) == 1


def test_nothing_is_fetched_twice_or_left_behind(undisturbed: Done) -> None:
    assert undisturbed.hits == Counter(tree(PAGES).keys())
    assert undisturbed.recorded == tree(PAGES).keys() - {"/"}
    assert not undisturbed.claims
    assert not undisturbed.workers


# -- many claims without a request --


@pytest.mark.parametrize("spider", [LAMBDA, RULES], ids=["lambda", "CrawlSpider"])
def test_claims_without_a_request_do_not_hide_pages_from_the_next_run(
    lab_of: LabOf, spider: str
) -> None:
    """It queries the filter about the pages while it looks at the claims of the killed worker."""
    children = [f"/{number}" for number in range(300)]
    lab = lab_of({"/": page(*children), **dict.fromkeys(children, page())})
    lab.site.hold_after(1)
    with lab.start(spider) as crawl:
        until(lambda: len(lab.claims()) == len(children) or crawl.is_over, "all are claimed")
        assert not crawl.is_over, crawl.log
        crawl.kill()
    lab.site.fetches.clear()
    done = lab.crawl(spider)
    assert not lab.missing()
    assert not done.claims


# -- children that fail --

FAMILY = plain(
    "Request(url, self.parse if url.endswith(self.settings['KEPT']) else lambda r: self.parse(r))"
)


@pytest.mark.parametrize("kept", ["/parent", "nothing"])
def test_a_child_that_failed_is_tried_again_when_it_is_due(lab_of: LabOf, kept: str) -> None:
    """Its parent is crawled again: no worker has its request."""
    lab = lab_of({"/": page("/parent"), "/parent": page("/child"), "/child": ERROR})
    settings = {"KEPT": kept, "BLOOM_RETRY_AFTER": "1 s", "RETRY_ENABLED": False}
    lab.crawl(FAMILY, **settings)
    assert lab.site.hits()["/child"] == 1
    lab.site.pages["/child"] = page("/grandchild")
    lab.site.pages["/grandchild"] = page()
    for _ in range(2):
        lab.wait_until_due()
        lab.crawl(FAMILY, **settings)
    assert not lab.missing()
    done = lab.crawl(FAMILY, **settings)
    assert done.hits == Counter(["/"])
    assert done.recorded == {"/parent", "/child", "/grandchild"}
    assert not done.claims
    assert not done.workers


# -- one request, yielded twice --

TWICE = plain("Request(url, CALLBACK, dont_filter=True)").replace(
    "            yield self.request(response, url)",
    "            request = self.request(response, url)\n"
    "            yield request\n"
    "            yield request",
)


@pytest.mark.parametrize("callback", ["self.parse", "lambda response: self.parse(response)"])
def test_one_request_object_that_is_yielded_twice_leaves_nothing_behind(
    lab_of: LabOf, callback: str
) -> None:
    lab = lab_of({"/": page("/a"), "/a": page()})
    # One is finished before the other is answered: Scrapy keeps requests in flight in sets, and
    # takes the crawl to be over when one object is in them twice and leaves.
    lab.site.hold_after(2)
    with lab.start(TWICE.replace("CALLBACK", callback), CONCURRENT_REQUESTS=1) as crawl:
        until(lambda: f"{{'url': '{lab.site.url}/a'}}" in crawl.log or crawl.is_over, "an item")
        time.sleep(1)  # it leaves the sets after the item is logged
        lab.site.release()
        crawl.wait()
    assert lab.site.hits() == Counter(["/", "/a", "/a"])
    assert not lab.claims()
    assert not lab.workers()
