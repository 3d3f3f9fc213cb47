"""Re-crawling: after months that pass on the server's clock, and in each run."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.clock import MovedServer
from support.counting import assert_ended_well
from support.odd_site import ERROR, Lab, LabOf, Reply, page, serve, star, tree
from support.odd_site import moved as moved_to


def test_pages_are_crawled_again_five_months_after_they_were_first_seen(
    moved: MovedServer, tmp_path: Path
) -> None:
    """Being seen in between prolongs nothing."""
    old = ("/a", "/b")
    pages = {"/": page(*old), "/a": page("/", "/b"), "/b": page("/a")}
    with serve(pages) as site, Lab(site, moved.url, tmp_path) as lab:
        for month, due in {0: old, 2: ("/new",), 4: (), 5: old, 7: ("/new",)}.items():
            if month == 2:
                site.pages |= {"/": page(*old, "/new"), "/new": page(*old)}
            moved.set_time(datetime(2027, 1 + month, 15, 12, tzinfo=UTC))
            done = lab.crawl(BLOOM_RECRAWL_AFTER="5 months")
            assert done.hits == Counter(["/", *due]), month


def test_listing_pages_are_read_in_each_run(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/list/a", "/b"), "/list/a": page("/c"), "/b": page(), "/c": page()})
    settings = {"BLOOM_RECRAWL_RULES": '[["/list/", "run"]]'}
    assert lab.crawl(**settings).hits == Counter([*lab.site.pages])
    lab.site.pages |= {"/list/a": page("/c", "/d"), "/d": page()}
    done = lab.crawl(**settings)
    assert done.hits == Counter(["/", "/list/a", "/d"])
    assert done.recorded == {"/b", "/c", "/d"}
    says = '1 new, 2 of the window "run", 2 duplicates, 2 crawled, 0 failed in this process; 3 '
    assert says in done.log
    assert_ended_well(done)
    assert "nothing was new" not in lab.crawl(**settings).log, "the listing page was read"


def test_pending_pages_that_become_listing_pages_are_pending_no_more(lab_of: LabOf) -> None:
    """A rule gives them the window "run" after a kill, and nothing links them any more."""
    lab = lab_of(star(5))
    lab.kill_midway(1, BLOOM_HEARTBEAT=1)
    lab.site.pages["/"] = page()
    rules: dict[str, Any] = {"BLOOM_HEARTBEAT": 1, "BLOOM_RECRAWL_RULES": '[["/[0-9]", "run"]]'}
    assert len(lab.crawl(**rules).hits) == 6
    assert not lab.claims()
    assert lab.crawl(**rules).hits == {"/": 1}


UNFILTERED = """
class UnfilteredSpider(OddSpider):
    def parse(self, response):
        return self.links(response, dont_filter=self.settings.getbool("DONT_FILTER"))
"""


@pytest.mark.parametrize("dont_filter", [True, False], ids=["dont_filter", "run"])
def test_runs_that_are_cut_leave_each_request_once(lab_of: LabOf, dont_filter: bool) -> None:
    """Each run yields it again, whether or not the last one got to it."""
    lab = lab_of(star(30))
    settings: dict[str, Any] = {"BLOOM_HEARTBEAT": 1, "DONT_FILTER": dont_filter}
    settings |= {} if dont_filter else {"BLOOM_RECRAWL_RULES": '[["/[0-9]", "run"]]'}
    for _ in range(3):
        lab.kill_midway(10, UNFILTERED, CONCURRENT_REQUESTS=1, **settings)
        assert sum(map(lab.client.hlen, lab.client.scan_iter("*:claims:*"))) <= 30
    assert max(lab.crawl(UNFILTERED, **settings).hits.values()) == 1
    assert not lab.claims()


def test_a_spider_of_the_same_name_in_another_project_is_told_once(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page()})
    logs = [lab.crawl(BOT_NAME=name).log for name in ("dev", "dev", "prod", "prod")]
    told = ["of another project ('dev') uses this filter, too" in log for log in logs]
    assert told == [False, False, True, False]


@pytest.mark.parametrize(
    ("replies", "hits"),
    [
        ([ERROR, moved_to("/", cookie="is=here"), page("/a")], ["/", "/", "/", "/a"]),
        ([moved_to("/a")], ["/", "/a"]),
    ],
    ids=["retried, and redirected to itself", "redirected"],
)
def test_what_a_start_request_turns_into_is_fetched_once(
    lab_of: LabOf, replies: list[Reply], hits: list[str]
) -> None:
    lab = lab_of({"/": replies, "/a": page()})
    done = lab.crawl(RETRY_TIMES=1, CLOSESPIDER_TIMEOUT=60)
    assert done.hits == Counter(hits)
    assert_ended_well(done)
    assert lab.crawl().hits["/"] == 1, "in each run"


def test_a_run_that_fetches_all_again_begins_again_after_a_kill(lab_of: LabOf) -> None:
    lab = lab_of(tree(30))
    lab.crawl()
    again = {"BLOOM_RECRAWL_RULES": '[["", "run"]]'}
    lab.kill_midway(10, **again)
    done = lab.crawl(**again)
    assert done.hits.keys() == lab.site.pages.keys()
    assert "bloom-run-cut" not in done.log + lab.crawl().log


def test_a_run_after_one_that_was_to_fetch_all_again_says_what_it_skips(lab_of: LabOf) -> None:
    lab = lab_of(tree(30))
    lab.crawl()
    lab.kill_midway(10, BLOOM_RECRAWL_RULES='[["", "run"]]')
    told = ["bloom-run-cut" in lab.crawl().log for _ in range(2)]
    assert told == [True, False]


VERSIONS = """
class VersionsSpider(OddSpider):
    def parse(self, response):
        for request in self.links(response):
            path, _, version = request.url.partition("#")
            yield Request(path, meta={**response.meta, "bloom_key": f"{path} {version}"})
"""


@pytest.mark.parametrize("remember", ["crawled", "scheduled"])
def test_a_page_has_a_new_version_in_a_list_that_a_redirect_leads_to(
    lab_of: LabOf, remember: str
) -> None:
    """The spider passes on the meta of the list, in which Scrapy notes the redirect.

    A redirect has the key of its own URL.
    """
    lab = lab_of({"/": moved_to("/list"), "/list": page("/a#1", "/b#1"), "/a": page()})
    lab.site.pages |= {"/b": moved_to("/c"), "/c": page()}
    lab.crawl(VERSIONS, BLOOM_REMEMBER=remember)
    lab.site.pages["/list"] = page("/a#2", "/b#1", "/c#1")
    done = lab.crawl(VERSIONS, BLOOM_REMEMBER=remember)
    assert done.hits == Counter(["/", "/list", "/a", "/c"])
    assert "/c" in done.recorded
