"""BLOOM_REMEMBER = "crawled" and windows: of this run only, or gone from the settings."""

import re

from support.odd_site import TREE, Lab, LabOf, Reply, page, tree
from support.polling import until

# -- the window "run" --

LISTING = """
from support.odd_site import OddSpider

class ListingSpider(OddSpider):
    custom_settings = {"CONCURRENT_REQUESTS": 1}

    def parse(self, response):
        if b"broken" in response.body:
            raise ValueError("broken")
        for request in self.links(response):
            if "/listing" in request.url:
                request.meta["bloom_recrawl_after"] = "run"
            yield request
"""


def listing_site() -> dict[str, Reply | tuple[Reply, ...]]:
    """Return a site whose listing fails once, and whose last page is held by the test."""
    return {
        "/": page("/mid"),
        "/mid": page("/listing", "/slow"),
        "/listing": (Reply(text="broken"), page("/a", "/b")),
        **dict.fromkeys(("/slow", "/a", "/b"), page()),
    }


def fail_and_wait(lab: Lab, **settings: object) -> None:
    """Run until the listing has failed and is due again; then let the crawl have its last page."""
    lab.site.hold_after(3)
    with lab.start(LISTING, BLOOM_RETRY_AFTER="1 s", **settings) as crawl:
        until(
            lambda: crawl.is_over or "-" in {claim.kind for claim in lab.claims().values()},
            "the listing has failed",
        )
        until(lambda: lab.site.held or crawl.is_over, "the last page is under way")
        assert not crawl.is_over, crawl.log
        lab.wait_until_due()
        lab.site.release()
        crawl.wait()
    assert lab.site.hits()["/mid"] == 1


SCRAPY_REDIS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
    "BLOOM_HEARTBEAT": 1,
}


def test_a_listing_that_failed_is_tried_again_by_an_idle_worker(lab_of: LabOf) -> None:
    """Its claim is restored to the run in which it failed, or left to the next one."""
    lab = lab_of(listing_site())
    settings = SCRAPY_REDIS | {"REDIS_URL": lab.redis_url}
    fail_and_wait(lab, **settings)
    for _ in range(2):
        lab.wait_until_due()
        lab.crawl(LISTING, **settings)
    assert not lab.missing()
    assert not lab.claims()


def test_a_listing_that_failed_is_tried_again_by_the_next_run(lab_of: LabOf) -> None:
    lab = lab_of(listing_site())
    fail_and_wait(lab)
    lab.crawl(LISTING)
    assert not lab.missing()
    assert not lab.claims()


# -- settings that change between two runs --


def test_remembering_what_is_scheduled_warns_of_pages_that_were_claimed(lab_of: LabOf) -> None:
    """Nothing takes them over any more."""
    lab = lab_of(tree(60))
    lab.stop_midway(15, TREE)
    count = len(lab.claims())
    assert count
    done = lab.crawl(TREE, BLOOM_REMEMBER="scheduled")
    warnings = [line for line in done.log.splitlines() if "WARNING" in line]
    assert any("claim" in line and re.search(rf"\b{count}\b", line) for line in warnings)


def test_remembering_what_is_scheduled_does_not_warn_without_claims(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page()})
    lab.crawl()
    done = lab.crawl(BLOOM_REMEMBER="scheduled")
    warnings = [line for line in done.log.splitlines() if "WARNING" in line]
    assert not any("claim" in line for line in warnings)
