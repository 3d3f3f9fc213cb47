"""Workers and spiders beside each other: what one leaves behind, another one crawls."""

import re
from collections import Counter
from pathlib import Path

import pytest
from support.crawling import run
from support.odd_site import LabOf, page, serve, tree
from support.polling import until

from scrapy_bloom.bloom.client.embedded import is_free

PAGES = 30

#: Starts at START, and waits there until the file GO exists.
WAITING = """
import asyncio
from pathlib import Path

class WaitingSpider(OddSpider):
    async def start(self):
        yield Request(self.settings["SITE_URL"] + self.settings["START"], dont_filter=True)

    async def parse(self, response):
        go = self.settings["GO"]
        while go and not Path(go).exists():
            await asyncio.sleep(0.02)
        is_odd = self.settings.getbool("UNSTORED") and response.url.endswith("/late")
        for link in self.links(response, callback=(lambda r: self.parse(r)) if is_odd else None):
            yield link
"""


@pytest.mark.parametrize(("heartbeat", "unstored"), [(30, False), (1, False), (30, True)])
def test_a_worker_that_came_later_and_died_is_noticed_before_the_crawl_ends(
    lab_of: LabOf, heartbeat: int, unstored: bool
) -> None:
    """The first one has sent no heartbeat since. Requests that are not stored are new to it."""
    links = [f"/{number}" for number in range(PAGES)]
    lab = lab_of({"/": page("/own"), "/own": page(), "/2nd": page("/late"), "/late": page(*links)})
    lab.site.pages |= {link: page(f"/more{link}") for link in links}
    lab.site.pages |= {f"/more{link}": page() for link in links}
    go, settings = lab.directory / "go", {"BLOOM_HEARTBEAT": heartbeat, "UNSTORED": unstored}
    with lab.start(WAITING, START="/", GO=go, **settings) as first:
        until(lambda: lab.site.hits()["/"] or first.is_over, "the first one has begun")
        lab.kill_midway(6, WAITING, START="/2nd", GO="", **settings)
        assert len(lab.claims()) >= PAGES - 5
        go.touch()
        stats = first.wait()
    assert not lab.missing()
    assert stats["bloom/picked_up"] > 0
    assert not lab.claims()
    assert lab.recorded() == lab.site.pages.keys() - {"/", "/2nd"}


OTHER = """
class OtherSpider(OddSpider):
    name = "other"
"""
BOTH = {"BLOOM_KEY": "both"}


def test_what_a_spider_that_never_runs_again_has_claimed_is_crawled_by_another_one(
    lab_of: LabOf,
) -> None:
    """Both use one filter, and link the same pages."""
    links = [f"/{number}" for number in range(PAGES)]
    lab = lab_of({"/": page(*links), **dict.fromkeys(links, page())})
    lab.kill_midway(PAGES // 2, OTHER, **BOTH)
    assert lab.missing()
    done = lab.crawl(**BOTH)
    assert not lab.missing()
    assert done.recorded == lab.site.pages.keys() - {"/"}
    assert {claim.key.rpartition(":")[2] for claim in done.claims.values()} == {"other"}


def test_spiders_on_one_filter_share_what_was_crawled(lab_of: LabOf) -> None:
    lab = lab_of(tree(PAGES))
    lab.crawl(**BOTH)
    assert lab.crawl(OTHER, **BOTH).hits.keys() == {"/"}


TWO_SPIDERS = """
import sys
from scrapy.crawler import CrawlerProcess
from support.odd_site import OddSpider

process = CrawlerProcess(dict(pair.split("=", 1) for pair in sys.argv[1:]))
for name in ("first", "second"):
    process.crawl(type("Named", (OddSpider,), {"name": name}))
process.start()
"""


def test_spiders_in_one_process_have_filters_of_their_own(tmp_path: Path) -> None:
    """On one embedded server, which the second of them stops; nothing is left open."""
    settings = {"BLOOM_REDIS_URL": f"embedded:{tmp_path}", "TELNETCONSOLE_ENABLED": "0"}
    with serve(tree(PAGES)) as site:
        settings |= {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "SITE_URL": site.url}
        done = run("-X", "dev", "-c", TWO_SPIDERS, *map("=".join, settings.items()))
        assert site.hits() == Counter([*site.pages] * 2)
    assert done.returncode == 0
    assert "ERROR" not in done.stderr
    assert "scrapy_bloom" not in "".join(re.findall(r".*Warning: .*", done.stderr))
    assert is_free(tmp_path / "server.lock"), "the server still runs"
