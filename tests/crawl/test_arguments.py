"""What a run leaves belongs to runs with its arguments, because others would crawl it wrongly.

Arguments are those of `scrapy crawl -a`: not settings, and nothing that a spider sets by itself.
"""

import re
from collections import Counter
from typing import Any

import pytest
from support.lab_commands import bloom
from support.odd_site import ERROR, SHARED_QUEUE, Lab, LabOf, kinds, moved, page, star

PAGES = star(40)
LINKS = PAGES.keys() - {"/"}
#: Pages that a run gets before it is killed.
MIDWAY = 6
SETTINGS: dict[str, Any] = {"BLOOM_HEARTBEAT": 1, "RETRY_ENABLED": False}
#: A spider for any domain: it begins where its argument says, and leaves the others alone.
SPIDER = """
import time
from urllib.parse import urlsplit
from scrapy.exceptions import IgnoreRequest

HOSTS = {"a": "127.0.0.1", "b": "localhost"}

class Drop(Component):
    def process_request(self, request, spider=None):
        if self.crawler.settings["DROPS"] == "middleware" and request.url[-1].isdecimal():
            self.crawler.stats.inc_value("middleware/filtered")
            raise IgnoreRequest

class DomainSpider(OddSpider):
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Drop: 10}}

    def __init__(self, domain="a", **kwargs):
        super().__init__(**kwargs)
        self.host, self.started = HOSTS[domain], time.time()

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        self = super().from_crawler(crawler, *args, **kwargs)
        is_offsite = crawler.settings["DROPS"] == "offsite"
        self.allowed_domains = ["other.invalid" if is_offsite else self.host]
        return self

    async def start(self):
        port = urlsplit(self.settings["SITE_URL"]).port
        yield Request(f"http://{self.host}:{port}/", meta={"allow_offsite": True})
"""


def leave(lab: Lab, how: str = "killed", **arguments: str) -> int:
    """Run a spider that leaves pages; return how many."""
    if how == "killed":
        lab.kill_midway(MIDWAY, SPIDER, arguments=arguments, **SETTINGS)
    else:
        lab.site.pages |= dict.fromkeys(LINKS, ERROR)
        lab.crawl(SPIDER, arguments=arguments, **SETTINGS)
        lab.site.pages |= PAGES
        lab.make_due()
    return len(lab.claims())


def requests(lab: Lab) -> dict[str, tuple[str, int]]:
    """Return the stored requests, and how often they have failed."""
    return {path: (claim.request, claim.attempt) for path, claim in lab.claims().items()}


@pytest.mark.parametrize("how", ["killed", "failed"])
def test_what_a_run_left_waits_for_a_run_with_its_arguments(lab_of: LabOf, how: str) -> None:
    """However many runs with other ones come between: they'd drop it as offsite."""
    lab = lab_of(PAGES)
    leave(lab, how, domain="a")
    left, hits = requests(lab), lab.site.hits()
    for _ in range(3):
        lab.crawl(SPIDER, arguments={"domain": "b"}, **SETTINGS)
        assert requests(lab) == left
    assert lab.site.hits() - hits == Counter({f"{lab.site.offsite}/": 3})
    lab.site.pages["/"] = page()
    lab.crawl(SPIDER, arguments={"domain": "a"}, **SETTINGS)
    assert lab.recorded() == {*LINKS}
    assert not lab.claims()


def test_a_run_with_other_arguments_crawls_what_it_links_itself(lab_of: LabOf) -> None:
    lab = lab_of(PAGES)
    leave(lab, tenant="a")
    lab.site.pages["/"] = page()
    assert lab.crawl(SPIDER, arguments={"tenant": "b"}, **SETTINGS).hits == Counter(["/"])
    lab.site.pages["/"] = PAGES["/"]
    lab.crawl(SPIDER, arguments={"tenant": "b"}, **SETTINGS)
    assert lab.recorded() == {*LINKS}
    assert not lab.claims()


def test_what_a_run_with_other_arguments_has_failed_is_retried_if_this_run_links_it(
    lab_of: LabOf,
) -> None:
    """Its page is remembered, so nothing else would lead there."""
    lab = lab_of(PAGES | dict.fromkeys(LINKS, ERROR))
    lab.crawl(SPIDER, arguments={"tenant": "once"}, **SETTINGS)
    lab.site.pages |= PAGES
    lab.crawl(SPIDER, **SETTINGS)
    lab.site.pages["/"] = page()
    lab.make_due()
    lab.crawl(SPIDER, **SETTINGS)
    assert lab.recorded() == {*LINKS}
    assert not lab.claims()


def test_what_a_run_with_other_arguments_had_when_it_died_is_crawled_if_this_run_links_it(
    lab_of: LabOf,
) -> None:
    lab = lab_of(PAGES)
    lab.site.hold(*LINKS)
    with lab.start(SPIDER, arguments={"tenant": "once"}, **SETTINGS) as once:
        once.until(lambda: lab.site.held, "it's midway")
        assert lab.crawl(SPIDER, **SETTINGS).stats["bloom/duplicates"] == len(LINKS)
        once.kill()
    lab.site.release()
    lab.site.pages["/"] = page()
    lab.crawl(SPIDER, **SETTINGS)
    assert lab.recorded() == {*LINKS}
    assert not lab.claims()


def test_users_see_how_many_pages_wait_for_which_arguments(lab_of: LabOf) -> None:
    lab = lab_of(PAGES)
    count = leave(lab, domain="a")
    done = lab.crawl(SPIDER, arguments={"domain": "b"}, **SETTINGS)
    assert re.search(rf"\b{count}\b.*domain=a", done.log)
    assert "domain=a" in bloom(lab, "pending", spider=SPIDER).out


def test_runs_with_the_same_arguments_may_differ_in_all_else(lab_of: LabOf) -> None:
    """In settings, in what a spider sets by itself, and in what begins with an underscore."""
    lab = lab_of(PAGES)
    leave(lab, domain="a", tenant="x", _job="1")
    lab.site.pages["/"] = page()
    again = {"_job": "2", "tenant": "x", "domain": "a"}
    lab.crawl(
        SPIDER, arguments=again, **SETTINGS, CONCURRENT_REQUESTS=3, BLOOM_RETRY_AFTER="2 hours"
    )
    assert lab.recorded() == {*LINKS}
    assert not lab.claims()


@pytest.mark.parametrize("drops", ["middleware", "offsite"])
def test_a_page_that_is_dropped_when_it_is_picked_up_stays_pending(
    lab_of: LabOf, drops: str
) -> None:
    """It's tried once in such a run; a run that doesn't drop it crawls it."""
    lab = lab_of(PAGES)
    count = leave(lab)
    left = lab.claims().keys()
    lab.site.pages["/"] = page()
    done = lab.crawl(SPIDER, DROPS=drops, **SETTINGS)
    assert done.hits == Counter(["/"])
    assert done.claims.keys() == left
    assert done.stats[f"{drops}/filtered"] == count
    lab.crawl(SPIDER, **SETTINGS)
    assert lab.recorded() == {*LINKS}
    assert not lab.claims()


@pytest.mark.parametrize("arguments", [{}, {"tenant": "b"}], ids=["the same", "others"])
@pytest.mark.parametrize(
    "drops",
    [{"DROPS": "middleware"}, {"DROPS": "offsite"}, {"DROPS": "middleware", **SHARED_QUEUE}],
    ids=["middleware", "offsite", "scrapy-redis"],
)
def test_a_page_that_is_dropped_when_a_run_links_it_stays_pending(
    lab_of: LabOf, drops: dict[str, Any], arguments: dict[str, str]
) -> None:
    """The run before has remembered the page that links it. The run doesn't pick it up as well."""
    lab = lab_of(PAGES)
    count = leave(lab)
    left = lab.claims().keys()
    done = lab.crawl(SPIDER, arguments=arguments, **drops, **SETTINGS)
    assert done.hits == Counter(["/"])
    assert done.stats.get("middleware/filtered", count) == count
    assert done.claims.keys() == left
    lab.site.pages["/"] = page()
    lab.crawl(SPIDER, **SETTINGS)
    assert lab.recorded() == {*LINKS}
    assert not lab.claims()


@pytest.mark.parametrize(
    "queue", [{}, {"JOBDIR": "../job"}, SHARED_QUEUE], ids=["memory", "jobdir", "scrapy-redis"]
)
def test_a_page_stays_pending_that_redirects_to_a_dropped_one_when_it_is_picked_up(
    lab_of: LabOf, queue: dict[str, Any]
) -> None:
    """The redirect is another request, and a queue on a disk makes another object of each."""
    lab = lab_of({"/": page("/a"), "/a": page()})
    lab.kill_midway(1, SPIDER, **SETTINGS)
    lab.site.pages |= {"/": page(), "/a": moved("/1")}
    done = lab.crawl(SPIDER, DROPS="middleware", **SETTINGS, **queue)
    assert done.stats["middleware/filtered"] == 1
    assert kinds(done.claims) == {"/a": "-"}
    lab.site.pages["/a"] = page()
    lab.crawl(SPIDER, **SETTINGS)
    assert lab.recorded() == {"/a"}
    assert not lab.claims()
