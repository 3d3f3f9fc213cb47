"""BLOOM_REMEMBER = "crawled" in real crawls: what is recorded, what is tried again, what is left.

Each crawl is a process of its own; the site is in this one. Several tests may look at one crawl.
"""

import json
import shutil
from collections import Counter

from support.odd_site import (
    DENIED,
    ERROR,
    MISSING,
    RESET,
    Lab,
    LabOf,
    Reply,
    kinds,
    moved,
    page,
    star,
)
from support.polling import until

# -- a crawl that nothing happens to --

DROPPING = """
from scrapy.exceptions import IgnoreRequest

class DropOutput:
    def process_spider_output(self, response, result, spider=None):
        return (r for r in result if not getattr(r, "url", "").endswith("/dropped"))

    async def process_spider_output_async(self, response, result, spider=None):
        async for r in result:
            if not getattr(r, "url", "").endswith("/dropped"):
                yield r

class Ignore:
    def process_request(self, request, spider=None):
        if request.url.endswith("/ignored-request"):
            raise IgnoreRequest

    def process_response(self, request, response, spider=None):
        if request.url.endswith("/ignored-response"):
            raise IgnoreRequest
        return response

class DroppingSpider(OddSpider):
    custom_settings = {
        "ROBOTSTXT_OBEY": True,
        "URLLENGTH_LIMIT": 100,
        "SPIDER_MIDDLEWARES": {DropOutput: 10},
        "DOWNLOADER_MIDDLEWARES": {Ignore: 10},
    }
"""
ROBOTS = Reply(text="User-agent: *\nDisallow: /forbidden")


def test_the_filter_holds_exactly_what_was_crawled(lab_of: LabOf) -> None:
    """Not the start page, which each run begins with, nor what is dropped in any way there is."""
    dropped = ("/dropped", "/forbidden", "/ignored-request", "/ignored-response")
    long = f"/long?{'x' * 100}"
    lab = lab_of({"/robots.txt": ROBOTS, "/ignored-response": page("/never"), "/gone": MISSING})
    offsite = f"{lab.site.offsite}/other"
    lab.site.pages |= {
        "/": page("/a", *dropped, long, offsite, "/b", "/gone"),
        "/a": page("/", "/b", "/c", *dropped, long, offsite),
        "/b": page(),
        "/c": page("/a", *dropped),
    }
    first = lab.crawl(DROPPING)
    assert first.recorded == {"/a", "/b", "/c", "/gone"}
    assert (first.stats["bloom/crawled"], first.stats["bloom/dropped"]) == (4, 3)
    # What a middleware drops is not scheduled again in this run.
    crawled = ["/robots.txt", "/", "/a", "/b", "/c", "/gone", "/ignored-response"]
    assert first.hits == Counter(crawled)
    assert not first.claims
    assert not first.workers, "its entry stays"
    assert "ERROR" not in first.log
    second = lab.crawl(DROPPING)
    assert second.hits == Counter(["/robots.txt", "/", "/ignored-response"])
    assert second.recorded == first.recorded


def test_a_page_is_remembered_with_links_that_are_no_pages(lab_of: LabOf) -> None:
    """Scrapy can't download the links of buttons that share a page, for example."""
    lab = lab_of({"/": page("/contact"), "/contact": page("whatsapp://127.0.0.1/send", "/p")})
    lab.site.pages["/p"] = page()
    assert lab.crawl().recorded == {"/contact", "/p"}


# -- redirects --

REDIRECTS = """
class RedirectSpider(OddSpider):
    custom_settings = {
        "ROBOTSTXT_OBEY": True, "CONCURRENT_REQUESTS": 1, "REDIRECT_MAX_TIMES": 5
    }
"""


#: Chains whose ends are both recorded, and others.
CHAINS = (
    *("/hop1", "/hop2", "/end", "/from-end", "/to-a", "/a", "/to-later", "/later", "/cookie"),
    *("/from-cookie", "/cookies", "/from-cookies", "/meta", "/meta-end", "/to-start", "/recovers"),
)
NOWHERE = ("/to-forbidden", "/loop1", "/loop2", "/self")


def test_both_ends_of_redirects_are_recorded_if_they_lead_to_a_page(lab_of: LabOf) -> None:
    """The next run follows those that led nowhere. One whose end fails, or is on another site, has
    failed as a whole.

    A URL may come back in its own chain, because a site may set cookies; one that redirects in
    circles costs REDIRECT_MAX_TIMES. What a retry is redirected to is not recorded. A start page is
    fetched once more for those that lead there.
    """
    lab = lab_of({"/robots.txt": ROBOTS})
    lab.site.pages |= {
        "/": page(
            *("/hop1", "/a", "/to-later", "/later", "/cookie", "/cookies", "/meta", "/to-start"),
            *("/to-offsite", "/to-forbidden", "/loop1", "/self", "/to-denied", "/recovers"),
        ),
        "/hop1": moved("/hop2"),
        "/hop2": moved("/end"),
        "/end": page("/from-end"),
        "/a": page("/to-a"),
        "/to-a": moved("/a"),
        "/to-later": moved("/later"),
        "/cookie": (moved("/cookie", cookie="known=1"), page("/from-cookie")),
        "/cookies": (
            moved("/cookies", cookie="first=1"),
            moved("/cookies", cookie="second=1"),
            page("/from-cookies"),
        ),
        "/meta": Reply(text='<meta http-equiv="refresh" content="0;url=/meta-end">'),
        "/to-start": moved("/"),
        "/to-offsite": moved(f"{lab.site.offsite}/other"),
        "/to-forbidden": moved("/forbidden"),
        "/loop1": moved("/loop2"),
        "/loop2": moved("/loop1"),
        "/self": moved("/self"),
        "/to-denied": moved("/denied"),
        "/denied": DENIED,
        "/recovers": (ERROR, moved("/recovered")),
        **dict.fromkeys(("/from-end", "/later", "/from-cookie", "/from-cookies"), page()),
        **dict.fromkeys(("/meta-end", "/recovered"), page()),
    }
    first = lab.crawl(REDIRECTS)
    assert first.recorded == {*CHAINS, "/"}
    times = {
        "/": 2,
        "/cookie": 2,
        "/cookies": 3,
        "/recovers": 2,
        "/loop1": 3,
        "/loop2": 3,
        "/self": 6,
    }
    paths = {*CHAINS, *times}
    assert {path: first.hits[path] for path in paths} == {
        path: times.get(path, 1) for path in paths
    }
    assert kinds(first.claims) == {"/to-denied": "-", "/denied": "-", "/to-offsite": "-"}
    assert not first.workers
    assert lab.crawl(REDIRECTS).hits.keys() == {"/robots.txt", "/", *NOWHERE}


# -- what fails --


def test_what_fails_is_tried_again_when_it_is_due(lab_of: LabOf) -> None:
    paths = ("/flaky", "/broken", "/reset-once", "/reset", "/denied")
    lab = lab_of(
        {
            "/": page(*paths),
            "/flaky": (ERROR, ERROR, page()),
            "/broken": ERROR,
            "/reset-once": (RESET, page()),
            "/reset": RESET,
            "/denied": DENIED,
        }
    )
    done = lab.crawl()
    times = {"/": 1, "/flaky": 3, "/broken": 3, "/reset-once": 2, "/reset": 3, "/denied": 1}
    assert done.hits == times
    assert done.recorded == {"/flaky", "/reset-once"}
    assert done.claims.keys() == {"/broken", "/reset", "/denied"}
    assert {(claim.kind, claim.attempt) for claim in done.claims.values()} == {("-", 1)}
    assert all(json.loads(claim.request)["url"] for claim in done.claims.values())
    assert done.stats["bloom/failed"] == 3
    assert not done.workers
    # Meanwhile it is not fetched, although it is linked. Then it is, although nothing links it.
    assert lab.crawl().hits == Counter(["/"])
    lab.site.pages |= {"/": page(), "/reset": page("/from-reset"), "/from-reset": page()}
    lab.make_due("/reset")
    done = lab.crawl()
    assert done.hits == Counter(["/", "/reset", "/from-reset"])
    assert {"/reset", "/from-reset"} <= done.recorded
    assert done.stats["bloom/picked_up"] == 1
    lab.site.pages["/"] = page("/absent", "/broken")
    done = lab.crawl()
    assert "/absent" in done.recorded, "404 counts as crawled"
    assert done.claims["/broken"].kind == "-"


# -- callbacks and errbacks --

CALLBACKS = """
from scrapy.downloadermiddlewares.retry import get_retry_request

class CallbackSpider(OddSpider):
    def parse(self, response):
        for number, link in enumerate(response.css("a::attr(href)").getall()):
            name = link.strip("/").replace("-", "_")
            yield response.follow(
                link,
                getattr(self, f"parse_{name}", None) or self.links,
                errback=getattr(self, f"errback_{name}", None),
                priority=-number,
            )

    def errback_yields(self, failure):
        yield Request(self.settings["SITE_URL"] + "/from-errback")

    def errback_raises(self, failure):
        raise ValueError("errback")

    def parse_halfway(self, response):
        yield response.follow("/from-halfway")
        raise ValueError("callback")

    async def parse_coroutine(self, response):
        return [response.follow("/from-coroutine")]

    async def parse_generator_halfway(self, response):
        yield response.follow("/from-generator-halfway")
        raise ValueError("callback")

    async def parse_inline(self, response):
        yield response.follow("/claimed-first")
        for link in ("/claimed-first", "/linked-elsewhere", "/unlinked", "/inline-moved"):
            yield {"status": (await self.download(response.urljoin(link))).status}

    def parse_copies_meta(self, response):
        yield response.follow("/broken-copy", meta=response.meta)
        yield response.follow("/unfiltered-copy", meta=response.meta, dont_filter=True)

    def parse_same(self, response):
        if not response.meta.get("again"):
            response.request.meta["again"] = True
            response.request.dont_filter = True
            yield response.request

    def parse_busy(self, response):
        if b"busy" in response.body:
            yield get_retry_request(response.request, spider=self, reason="busy")
        else:
            yield response.follow("/from-busy")

    def parse_unkept(self, response):
        yield response.follow("/lambda", lambda response: None)
        yield response.follow("/object", meta={"object": object()})
"""


def test_callbacks_and_errbacks_of_all_sorts(lab_of: LabOf) -> None:
    paths = [
        *("/yields", "/raises", "/halfway"),
        *("/coroutine", "/generator-halfway", "/inline", "/linked-elsewhere"),
        *("/copies-meta", "/same", "/busy", "/unkept"),
    ]
    others = [
        *("/from-errback", "/from-halfway", "/from-coroutine"),
        *("/from-generator-halfway", "/claimed-first", "/unlinked"),
        *("/unfiltered-copy", "/from-busy", "/lambda", "/object", "/inline-end"),
    ]
    lab = lab_of(
        {
            **{path: page() for path in (*paths, *others)},
            "/": page(*paths),
            "/raises": RESET,
            "/yields": ERROR,
            "/broken-copy": ERROR,
            "/inline-moved": moved("/inline-end"),
            "/busy": (Reply(text="busy"), page()),
        }
    )
    done = lab.crawl(CALLBACKS, RETRY_TIMES=1)
    recorded = done.recorded
    # A page that fails is not recorded, whatever its errback does. One that raises leaves what it
    # has yielded. A child that fails or is not filtered does nothing to its parent.
    failed = {"/yields", "/raises", "/halfway", "/generator-halfway", "/broken-copy"}
    assert kinds(done.claims) == dict.fromkeys(failed, "-")
    from_callbacks = {"/from-errback", "/from-halfway", "/from-generator-halfway"}
    assert {"/copies-meta", "/coroutine", "/from-coroutine", *from_callbacks} <= recorded
    assert not failed & recorded
    assert done.hits["/unfiltered-copy"] == 1
    assert "/unfiltered-copy" not in recorded
    # Inline downloads neither claim nor settle.
    assert {"/inline", "/claimed-first", "/linked-elsewhere"} <= recorded
    assert not {"/unlinked", "/inline-moved", "/inline-end"} & recorded
    assert done.hits["/claimed-first"] == done.hits["/linked-elsewhere"] == 2
    # A request that is yielded again is settled once.
    assert {"/same", "/busy", "/from-busy"} <= recorded
    assert done.hits["/same"] == done.hits["/busy"] == 2
    # What cannot be kept is crawled nevertheless.
    assert {"/unkept", "/lambda", "/object"} <= recorded
    assert done.stats["bloom/unserializable"] == 2
    assert done.log.count("can't be saved as JSON") == 1
    assert not done.workers


LAMBDAS = """
class LambdaSpider(OddSpider):
    def parse(self, response):
        yield from self.links(response, callback=lambda response: None)
"""


def test_only_a_new_request_that_cannot_be_saved_is_warned_of(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page()})
    first, second = lab.crawl(LAMBDAS), lab.crawl(LAMBDAS)
    assert first.log.count("[bloom-unserializable]") == 1
    assert second.stats["bloom/duplicates"] == 1
    assert "[bloom-unserializable]" not in second.log


# -- pages that fail in all ways: what is stored of them, and when they are crawled again --

SECRET = "S3CRET"
SPIDER = """
class Failing(OddSpider):
    custom_settings = {"RETRY_ENABLED": False, "DOWNLOAD_TIMEOUT": 2}

    def parse(self, response):
        yield from self.links(response)
        if response.url.endswith("/raises"):
            raise KeyError("S3CRET")
        if response.url.endswith("/"):
            meta = {"allow_offsite": True}
            yield Request("http://nothing.invalid/", callback=self.parse_other, meta=meta)

    def parse_other(self, response):
        pass
"""


def test_a_claim_says_why_its_page_has_failed(lab_of: LabOf) -> None:
    """And nothing of what an exception says, which may be secret."""
    paths = ("/error", "/denied", "/reset", "/slow", "/raises", "/fine")
    lab = lab_of({"/": page(*paths), "/error": ERROR, "/denied": DENIED, "/reset": RESET})
    lab.site.pages |= {"/slow": Reply(body=b"12345", drip=1.0), "/fine": page(), "/raises": page()}
    done = lab.crawl(SPIDER)
    assert done.stats["bloom/failed"] == 6
    stored = [lab.client.hvals(key) for key in lab.client.keys("*:claims:*")]
    claims = [claim.decode().split(" ", 4) for block in stored for claim in block]
    assert SECRET not in str(claims)
    reasons = {json.loads(one[4])["url"].removeprefix(lab.site.url): one[1] for one in claims}
    assert {one[0] for one in claims} == {"-."}
    assert (reasons["/error"], reasons["/denied"]) == ("HTTP-500", "HTTP-403")
    assert reasons["/raises"] == "KeyError"
    assert "Timeout" in reasons["/slow"]
    # Scrapy's names of the others differ between versions.
    assert all(reasons[path].isalpha() for path in ("/reset", "http://nothing.invalid/"))


def test_a_page_fails_with_its_redirects_target_and_both_are_crawled_when_it_is_due(
    lab_of: LabOf,
) -> None:
    """Also with a target of another window, whose retry is no redirect of a retry."""
    for rules in ("[]", '[["/target", "run"]]'):
        lab = lab_of({"/": page("/a"), "/a": moved("/target"), "/target": RESET})
        done = lab.crawl(BLOOM_RECRAWL_RULES=rules, RETRY_TIMES=1)
        assert done.hits == Counter(["/", "/a", "/target", "/target"])
        assert "/a" in done.claims
        assert not done.recorded
        lab.site.pages |= {"/": page(), "/target": page()}
        lab.make_due()
        done = lab.crawl(BLOOM_RECRAWL_RULES=rules, RETRY_TIMES=1)
        assert done.hits == Counter(["/", "/a", "/target"])
        assert "/a" in done.recorded
        assert not done.claims


def test_all_that_a_queue_on_disk_has_lost_is_put_back_by_one_scan(lab_of: LabOf) -> None:
    """The crawl isn't idle any more when the first of it is put back."""
    lab = lab_of(star(40))
    jobdir = lab.directory / "job"
    lab.kill_midway(12, JOBDIR=jobdir)
    shutil.rmtree(jobdir)
    lost = stored(lab, "q")
    # The start page, and those that were under way, are fetched before the queue is empty.
    lab.site.hold_after(1 + len(stored(lab, "w")))
    with lab.start(JOBDIR=jobdir) as crawl:
        until(lambda: not lost & stored(lab, "q"), "all are put back while the first are fetched")
        lab.site.release()
        crawl.wait()
    assert len(lost) > 1
    assert not lab.missing()


def stored(lab: Lab, kind: str) -> set[str]:
    """Return the claims of workers or queues, which say when they were made or picked up."""
    keys = lab.client.keys("*:claims:*")
    claims = {claim.decode() for key in keys for claim in lab.client.hvals(key)}
    return {claim for claim in claims if claim.startswith(kind)}
