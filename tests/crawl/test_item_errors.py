"""Item pipelines that raise, in real crawls: the pages of such items have failed."""

from typing import Any

import pytest
from scrapy import version_info
from support.odd_site import SHARED_QUEUE, Lab, LabOf, Reply, page

SPIDER = """
from scrapy.exceptions import CloseSpider, DropItem
from twisted.internet.task import deferLater

WRONG = {"DOWN": ConnectionError, "DROPPED": DropItem, "CLOSING": CloseSpider}

class Plain:
    @classmethod
    def from_crawler(cls, crawler):
        cls.settings = crawler.settings
        return cls()

    def process_item(self, item, spider=None):
        return self.store(item)

    def store(self, item):
        for setting, error in WRONG.items():
            if item["path"] in self.settings.getlist(setting):
                raise error("wrong")
        with open(self.settings["ITEMS"], "a") as file:
            file.write(item["name"] + "\\n")
        return item

class Late(Plain):
    def process_item(self, item, spider=None):
        from twisted.internet import reactor
        return deferLater(reactor, 0.05, self.store, item)

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
    names = {*(lab.directory / "items").read_text().splitlines()}
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
    code, settings = (
        SPIDER.replace("CHOSEN", pipeline),
        {"ITEMS": lab.directory / "items", **more},
    )
    done = lab.crawl(code, DOWN="/1,/5", CLOSING="/8", DROPPED="/2,/3", **settings)
    assert done.stats["finish_reason"] == "finished"
    assert done.stats["bloom/failed"] == 3
    assert {path: claim.attempt for path, claim in done.claims.items()} == dict.fromkeys(BROKEN, 1)
    assert done.recorded & PATHS == PATHS - BROKEN
    assert {f"{path} 0" for path in PATHS - BROKEN - {"/2", "/3"}} <= take(lab)
    lab.make_due()
    done = lab.crawl(code, **settings)
    assert done.hits.keys() - {"/", "/robots.txt"} == BROKEN
    assert not done.claims
    assert done.recorded >= PATHS
    assert take(lab) - {"/ 0", "/ 1"} == {f"{path} {item}" for path in BROKEN for item in (0, 1)}


@pytest.mark.skipif(version_info < (2, 13, 2), reason="2.13.0 drops what errbacks yield")
def test_an_item_of_an_errback_whose_pipeline_raises_is_tried_again(lab_of: LabOf) -> None:
    """Its page, which robots.txt forbids, would count as dropped."""
    robots = Reply(text="User-agent: *\nDisallow: /denied")
    lab = lab_of({"/": page("/denied"), "/denied": page(), "/robots.txt": robots})
    code, settings = SPIDER.replace("CHOSEN", "Plain"), {"ITEMS": lab.directory / "items"}
    done = lab.crawl(code, ROBOTSTXT_OBEY=True, DOWN="/denied", **settings)
    assert done.claims.keys() == {"/denied"}
    assert "/denied" not in take(lab)
    lab.make_due()
    lab.crawl(code, ROBOTSTXT_OBEY=True, **settings)
    assert "/denied" in take(lab)
