"""Item pipelines that raise, in real crawls: the pages of such items have failed."""

from typing import Any

import pytest
from scrapy import version_info
from support.odd_site import SHARED_QUEUE, Lab, LabOf, Reply, page

SPIDER = """
from pathlib import Path
from scrapy.exceptions import CloseSpider, DropItem
from twisted.internet.task import deferLater

class Plain:
    def process_item(self, item, spider=None):
        return self.store(item)

    def store(self, item):
        path = item["path"]
        if path in self.settings.getlist("DOWN"):
            raise ConnectionError("database is down")
        if path in self.settings.getlist("DROPPED"):
            raise DropItem("not wanted")
        if path in self.settings.getlist("CLOSING"):
            raise CloseSpider("enough")
        with Path(self.settings["ITEMS"]).open("a") as file:
            file.write(item["name"] + "\\n")
        return item

    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        self.settings = crawler.settings
        return self

class Late(Plain):
    def process_item(self, item, spider=None):
        from twisted.internet import reactor
        return deferLater(reactor, 0.05, self.store, item)

class Shop(OddSpider):
    custom_settings = {"ITEM_PIPELINES": {PIPELINE: 1}}

    def items(self, response):
        path = "/" + response.url.partition("://")[2].partition("/")[2]
        yield {"path": "", "name": f"{path} 1"}  # of each page, one is stored
        yield {"path": path, "name": f"{path} 0"}

    def parse(self, response):
        yield from self.items(response)
        yield from self.links(response, errback=self.failed)

    def failed(self, failure):
        yield {"path": "/denied", "name": "/denied"}
"""
PATHS = [f"/{number}" for number in range(10)]
BROKEN = {"/1", "/5", "/8"}


def spider(pipeline: str = "Plain") -> str:
    """Return a spider with one pipeline."""
    return SPIDER.replace("PIPELINE:", f"{pipeline}:")


class Shop:
    """A lab, and what its pipelines let through."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self._file = lab, lab.directory / "items"

    def settings(self, **settings: Any) -> dict[str, Any]:
        return {"ITEMS": self._file, **settings}

    def take(self) -> list[str]:
        """Return the names of the items since the last call."""
        names = self._file.read_text().split("\n")[:-1] if self._file.exists() else []
        self._file.unlink(missing_ok=True)
        return sorted(names)


@pytest.fixture
def shop(lab_of: LabOf) -> Shop:
    """Ten pages that the start page links."""
    return Shop(lab_of({"/": page(*PATHS), **{path: page("/") for path in PATHS}}))


@pytest.mark.parametrize(
    ("pipeline", "settings"),
    [("Plain", {}), ("Late", {**SHARED_QUEUE, "BLOOM_ITEMS_ONLY": True})],
)
def test_the_next_run_gets_the_items_of_which_a_pipeline_has_raised(
    shop: Shop, pipeline: str, settings: dict[str, Any]
) -> None:
    """CloseSpider is such an error, too, and closes nothing; DropItem is none."""
    lab, code = shop.lab, spider(pipeline)
    wrong = {"DOWN": "/1,/5", "CLOSING": "/8", "DROPPED": "/2,/3"}
    done = lab.crawl(code, **shop.settings(**settings, **wrong))
    assert done.stats["finish_reason"] == "finished"
    assert done.stats["bloom/failed"] == 3
    assert {path: claim.attempt for path, claim in done.claims.items()} == dict.fromkeys(BROKEN, 1)
    assert done.recorded & {*PATHS} == {*PATHS} - BROKEN
    assert {f"{path} 0" for path in {*PATHS} - BROKEN - {"/2", "/3"}} <= set(shop.take())
    for path in BROKEN:
        lab.make_due(path)
    done = lab.crawl(code, **shop.settings(**settings))
    assert done.hits.keys() - {"/", "/robots.txt"} == BROKEN
    assert not done.claims
    assert done.recorded >= {*PATHS}
    assert {*shop.take()} - {"/ 0", "/ 1"} == {
        f"{path} {number}" for path in BROKEN for number in (0, 1)
    }


@pytest.mark.skipif(version_info < (2, 13, 2), reason="2.13.0 drops what errbacks yield")
def test_an_item_of_an_errback_whose_pipeline_raises_is_tried_again(lab_of: LabOf) -> None:
    """Its page, which robots.txt forbids, would count as dropped."""
    robots = Reply(text="User-agent: *\nDisallow: /denied")
    shop = Shop(lab_of({"/": page("/denied"), "/denied": page(), "/robots.txt": robots}))
    settings = shop.settings(ROBOTSTXT_OBEY=True)
    done = shop.lab.crawl(spider(), **settings, DOWN="/denied")
    assert done.claims.keys() == {"/denied"}
    assert "/denied" not in shop.take()
    shop.lab.make_due("/denied")
    shop.lab.crawl(spider(), **settings)
    assert "/denied" in shop.take()
