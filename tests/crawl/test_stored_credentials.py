"""Secrets: what pending requests store of cookies, credentials and proxies; seeds."""

import json
from typing import Any

import pytest
from support.odd_site import ERROR, LabOf, moved, page, star
from support.servers import contents

from scrapy_bloom import BloomFilter

KEY = "odd:bloom"
#: Sends links with a secret of the spider's, each in one of three ways.
SPIDER = """
class SecretSpider(OddSpider):
    def parse(self, response):
        ways = [
            {"headers": {"Authorization": "Basic S3CRET"}},
            {"cookies": {"id": "S3CRET"}},
            {"meta": {"proxy": self.settings["SITE_URL"].replace("//", "//user:S3CRET@")}},
        ]
        for number, url in enumerate(response.css("a::attr(href)").getall()):
            yield response.follow(url, **ways[number % len(ways)])
"""


def test_what_the_spider_has_set_is_stored_and_used_by_the_next_run(lab_of: LabOf) -> None:
    lab = lab_of(star(8))
    lab.kill_midway(1, SPIDER)
    texts = " ".join(claim.request for claim in lab.claims().values())
    assert "Basic S3CRET" in texts
    assert "user:S3CRET@" in texts
    before = len(lab.site.fetches)
    done = lab.crawl(SPIDER)
    assert {path.removeprefix(lab.site.url) for path in lab.site.hits()} == lab.site.pages.keys()
    assert "S3CRET" in str([fetch.headers for fetch in lab.site.fetches[before:]])
    assert "S3CRET" not in done.log
    assert not done.claims


#: Middlewares add a secret to each request, in all ways, and again when it is put back.
ADDING = """
class Add(Component):
    def process_request(self, request, spider=None):
        request.headers["Authorization"] = "Basic S3CRET"
        request.headers["Cookie"] = "id=S3CRET"
        request.meta["note"] = "S3CRET"
        url = self.crawler.settings["SITE_URL"]
        request.meta["proxy"] = url.replace("//", "//user:S3CRET@")

class AddedSpider(OddSpider):
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Add: 100}, "RETRY_TIMES": 1}

    def parse(self, response):
        for request in self.links(response):
            yield request.replace(dont_filter=request.url.endswith("/odd"))
"""


@pytest.mark.parametrize(
    ("first", "fetched", "claimed"),
    [("/hop", 3, "/end"), ("/odd", 2, "once:/odd"), ("/fails", 2, "/fails")],
    ids=["second redirect", "redirect of dont_filter", "retry"],
)
def test_what_middlewares_add_to_a_request_is_never_on_the_server(
    lab_of: LabOf, first: str, fetched: int, claimed: str
) -> None:
    """Not with a redirect's target, a retry, or what fails: a kill loses none of them."""
    hops = {"/hop": moved("/hop2"), "/hop2": moved("/end"), "/odd": moved("/end")}
    lab = lab_of({"/": page(first, "/last"), "/end": page(), "/last": page(), "/fails": ERROR})
    lab.site.pages |= hops
    lab.kill_midway(fetched, ADDING, CONCURRENT_REQUESTS=1)
    claims = lab.claims()
    assert claimed in claims
    assert "S3CRET" not in str([(name, claim.request) for name, claim in claims.items()])
    done = lab.crawl(ADDING)
    assert done.hits.keys() >= {"/last"} | ({"/end"} if first != "/fails" else {first})
    assert "S3CRET" not in str(done.claims)
    assert done.claims.keys() == ({first} if first == "/fails" else set())


@pytest.mark.parametrize("fetched", [1, 2, 3], ids=["redirect", "its target", "a link"])
@pytest.mark.parametrize("rules", ["[]", '[["/(home)?$", "1 day"]]'], ids=["plain", "rule"])
def test_a_start_page_that_redirects_leaves_no_secret_and_no_page_after_a_kill(
    lab_of: LabOf, rules: str, fetched: int
) -> None:
    """With a rule the start page and its target are pending, too."""
    pages = star(4)
    lab = lab_of({**pages, "/": moved("/home"), "/home": pages["/"]})
    settings: dict[str, Any] = {"BLOOM_RECRAWL_RULES": rules, "BLOOM_HEARTBEAT": 1}
    lab.kill_midway(fetched, ADDING, CONCURRENT_REQUESTS=1, **settings)
    assert lab.site.fetches[-1].headers["Authorization"] == "Basic S3CRET"
    assert "S3CRET" not in str(contents(lab.client))
    done = lab.crawl(ADDING, **settings)
    assert not lab.missing()
    assert done.recorded >= pages.keys() - {"/"}
    assert not done.claims
    assert "S3CRET" not in str(contents(lab.client))


def test_a_retry_whose_claim_is_gone_is_stored_as_the_spider_made_it(lab_of: LabOf) -> None:
    """The claim was evicted, so it gets its request again when the page has failed."""
    lab = lab_of({"/": page("/fails"), "/fails": ERROR})
    with lab.midway(2, ADDING, CONCURRENT_REQUESTS=1) as crawl:
        lab.client.delete(lab.claims()["/fails"].key)
        lab.site.release()
        crawl.wait()
    stored = lab.claims()["/fails"].request
    assert "/fails" in stored
    assert "S3CRET" not in stored


# -- what a client that can write there may make a crawl fetch --


# -- seeds --


def test_the_log_and_stats_of_a_crawl_show_no_seeds(lab_of: LabOf) -> None:
    """Who knows them can choose URLs that hide pages."""
    # No other number has these digits, one after the other.
    seeds = [4_040_404_001 + 1_009 * number for number in range(17)]
    lab = lab_of({"/": page("/1"), "/1": page()})
    given = {"BLOOM_SEEDS": json.dumps(seeds), "BLOOM_RECRAWL_RULES": '[["/list", "1 day"]]'}
    done = lab.crawl(**given, LOG_LEVEL="DEBUG", DUPEFILTER_DEBUG=True)
    used = BloomFilter(lab.client, KEY)
    assert list(used.open().seeds) == seeds
    assert "Overridden settings" in done.log
    shown = done.log + json.dumps(done.stats)
    assert not [seed for seed in seeds if str(seed) in shown]
