"""BLOOM_REMEMBER = "crawled" in crawls that end early: the next run crawls what is left.

Each crawl is a process of its own; the site is in this one.
"""

from collections import Counter
from typing import Any

import pytest
from support.ends import ENDS
from support.odd_site import (
    TREE,
    Lab,
    LabOf,
    page,
    tree,
)
from support.polling import until

# -- what is kept --

KINDS = """
import json
from support.odd_site import OddSpider
from scrapy import FormRequest, Request
from scrapy.http import JsonRequest

class KindsSpider(OddSpider):
    def parse(self, response):
        for url in response.css("a::attr(href)").getall():
            yield from self.kinds(response.urljoin(url))

    def kinds(self, url):
        callback = {"callback": self.report, "errback": self.failed}
        yield Request(url + "/kwargs", **callback, cb_kwargs={"n": [1, (2, b"3")]}, flags=["f"])
        yield Request(url + "/meta", **callback, meta={"deep": {"a": {1: None}}}, priority=7)
        yield Request(url + "/headers", **callback, headers={"X-One": ["1", "2"], "Accept": "a/b"})
        yield Request(url + "/cookies", **callback, cookies={"name": "value"})
        yield Request(url + "/post", **callback, method="POST", body=b"\\x00\\xff")
        yield JsonRequest(url + "/json", **callback, data={"key": ["value", None]})
        yield FormRequest(url + "/form", **callback, formdata={"field": "v\\xe4lue"})
        yield Request(url + "/unfiltered", **callback, dont_filter=True)
        yield Request(url + "/bytes?q=%E4", **callback, encoding="latin-1")

    def report(self, response, **kwargs):
        request = response.request
        keep = {k: v for k, v in request.meta.items() if k in ("deep", "depth")}
        with open(self.settings["REPORT"], "a") as file:
            print(
                type(request).__name__, request.url, request.priority, request.flags,
                request.encoding, request.dont_filter, keep, kwargs, request.errback.__name__,
                file=file,
            )

    def failed(self, failure):
        pass
"""


def test_after_a_kill_requests_are_restored_exactly_as_they_were(lab_of: LabOf) -> None:
    """Also those that are not to be remembered: they are kept, and not recorded."""
    lab = lab_of({"/": page("/a", "/b")})
    names = ["kwargs", "meta", "headers", "cookies", "post", "json", "form", "bytes?q=%E4"]
    for path in ("/a", "/b"):
        lab.site.pages |= {f"{path}/{name}": page() for name in (*names, "unfiltered")}
    report = lab.directory / "report"
    lab.crawl(KINDS, REPORT=report, BLOOM_KEY="reference")
    expected = sorted(report.read_text().splitlines())
    fetches = {"reference": take_fetches(lab)}
    assert len(expected) == 18

    report.write_text("")
    lab.site.hold_after(1)
    with lab.start(KINDS, REPORT=report, CONCURRENT_REQUESTS=4) as crawl:
        until(lambda: len(lab.claims()) == 18, "all are claimed")
        assert {"kept:/a/unfiltered", "kept:/b/unfiltered"} < lab.claims().keys()
        assert {claim.kind for claim in lab.claims().values()} == {"w"}
        crawl.kill()
    take_fetches(lab)

    lab.site.pages["/"] = page()
    done = lab.crawl(KINDS, REPORT=report)
    assert sorted(report.read_text().splitlines()) == expected
    fetches["restored"] = take_fetches(lab)
    assert fetches["restored"] == fetches["reference"]
    assert done.stats["bloom/taken_over"] == 18
    assert not lab.claims()
    assert not lab.workers()
    recorded = lab.recorded()  # by GET
    assert {"/a/kwargs", "/b/cookies"} <= recorded
    assert not {"/a/unfiltered", "/b/unfiltered"} & recorded


def take_fetches(lab: Lab) -> list[tuple[Any, ...]]:
    """Return what the site was asked, without the headers that may differ; forget it."""
    kept = ("X-One", "Accept", "Content-Type", "Content-Length")
    fetches = []
    for fetch in lab.site.fetches:
        # Others have the cookie as well, if they are fetched later.
        names = (*kept, "Cookie") if fetch.path.endswith("/cookies") else kept
        headers = [(name, value) for name, value in fetch.headers.items() if name in names]
        fetches.append((fetch.path, fetch.method, headers, fetch.body))
    lab.site.fetches.clear()
    return sorted(fetches)


# -- the end of a crawl --

PAGES = 60


@pytest.mark.parametrize(
    ("end", "fetched_twice"),
    [
        ("page count", 0),
        pytest.param("CloseSpider", 1, marks=pytest.mark.slow),
        pytest.param("SIGINT", 0, marks=pytest.mark.slow),  # SIGTERM does the same
        ("SIGTERM", 0),
        ("SIGINT twice", None),
        ("SIGKILL", None),
    ],
)
def test_the_next_run_crawls_what_this_one_has_not(
    lab_of: LabOf, end: str, fetched_twice: int | None
) -> None:
    """After a clean stop nothing is fetched twice; else, nothing that was recorded."""
    lab = lab_of(tree(PAGES))
    ENDS[end](lab, TREE)
    before, recorded, claimed = lab.site.hits(), lab.recorded(), lab.claims().keys()
    assert recorded < lab.site.pages.keys() - {"/"}
    assert claimed
    assert lab.workers()
    done = lab.crawl(TREE)
    everything = lab.site.pages.keys() - {"/"}
    assert lab.recorded() == everything
    assert not lab.claims()
    assert not lab.workers()
    twice = before.keys() & done.hits.keys() - {"/"}
    # What was killed between its record and the end of its claim has both.
    assert twice & recorded <= claimed
    assert max(done.hits.values()) == 1
    if fetched_twice is not None:
        assert len(twice) == fetched_twice
    assert done.stats["bloom/taken_over"] > 0


CHANGED = """
from support.odd_site import OddSpider

class ChangedSpider(OddSpider):
    def parse(self, response):
        return self.links(response, callback=self.CALLBACK)

    def CALLBACK(self, response):
        pass
"""


def test_a_request_whose_callback_is_gone_waits_to_be_found_again(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page()})
    lab.kill_midway(1, CHANGED.replace("CALLBACK", "parse_old"))
    lab.site.pages["/"] = page()
    changed = CHANGED.replace("CALLBACK", "parse_new")
    done = lab.crawl(changed)
    assert done.stats["bloom/not_restored"] == 1
    assert "parse_old" in done.log
    assert done.hits == Counter(["/"])
    assert not lab.claims()
    lab.site.pages["/"] = page("/a")
    lab.crawl(changed)
    assert lab.recorded() == {"/a"}
