"""Secrets: what pending requests store of cookies, credentials and proxies; seeds."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.odd_site import Lab, LabOf, page

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.crawl import request_codec, workers

KEY = "odd:bloom"
#: Sends links with a secret, each in one of four ways.
SPIDER = """
class SecretSpider(OddSpider):
    def parse(self, response):
        ways = [
            {"headers": {"Authorization": "Basic S3CRET"}},
            {"headers": {"cookie": "id=S3CRET"}},
            {"cookies": {"id": "S3CRET"}},
            {"meta": {"proxy": self.settings["SITE_URL"].replace("//", "//user:S3CRET@")}},
        ]
        for number, url in enumerate(response.css("a::attr(href)").getall()):
            yield response.follow(url, **ways[number % len(ways)])
"""
#: Requests to proxies have no cookies of their own; robots.txt is not needed.
SITE = {"/": page(*(f"/{number}" for number in range(1, 9)))} | {
    f"/{number}": page() for number in range(1, 9)
}


def stored(lab: Lab) -> str:
    """All that is in the claims."""
    return " ".join(claim.request for claim in lab.claims().values())


@pytest.mark.parametrize("is_kept", [True, False])
def test_credentials_are_stored_unless_that_is_off_and_no_page_is_lost(
    lab_of: LabOf, is_kept: bool
) -> None:
    lab, settings = lab_of(SITE), {"BLOOM_KEEP_HEADERS": is_kept}
    first = lab.kill_midway(4, SPIDER, **settings)
    assert lab.claims()
    assert ("S3CRET" in stored(lab)) is is_kept
    done = lab.crawl(SPIDER, **settings)
    assert {path.removeprefix(lab.site.url) for path in first + done.hits} == {*SITE}
    assert not done.claims
    assert "S3CRET" not in done.log
    assert done.log.count("and BLOOM_KEEP_HEADERS is False") == (not is_kept)


# -- what a client that can write there may make a crawl fetch --


def forge(lab: Lab, url: str, meta: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
    """Write the claim of a worker that has stopped."""
    bloom = BloomFilter(lab.client, KEY, blocks=1)
    bloom.open()
    item = fingerprint(Request(url))
    own = {"bloom_claims": {f"default:{item.hex()}": 0}}
    text = request_codec.dump(Request(url, meta={**own, **(meta or {})}, **kwargs), None)
    claim = f"{workers.failed_id('odd')} n 1 0 {text}"
    lab.client.hset(Keys(KEY).claims(0), item.hex(), claim)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_restored_request_has_a_proxy_only_where_these_are_kept_and_is_never_offsite(
    lab_of: LabOf, is_kept: bool
) -> None:
    url = "http://127.0.0.1:1/1"
    lab = lab_of({"/": page(), url: page()})
    forge(lab, url, {"proxy": lab.site.url})
    forge(lab, f"{lab.site.offsite}/1")
    done = lab.crawl(BLOOM_KEEP_HEADERS=is_kept, RETRY_ENABLED=False)
    assert set(done.hits) == ({"/", url} if is_kept else {"/"})
    assert done.stats.get("bloom/not_restored", 0) == (not is_kept)
    assert ("it has cookies, credentials or a proxy" in done.log) is not is_kept
    assert done.stats["offsite/filtered"] == 1
    assert not done.claims


# -- seeds --


def test_the_log_and_stats_of_a_crawl_show_no_seeds(lab_of: LabOf) -> None:
    """Who knows them can choose URLs that hide pages: one warning says what to do."""
    # No other number has these digits, one after the other.
    seeds = [4_040_404_001 + 1_009 * number for number in range(17)]
    lab = lab_of({"/": page("/1"), "/1": page()})
    given = {"BLOOM_SEEDS": json.dumps(seeds), "BLOOM_RECRAWL_RULES": '[["/list", "1 day"]]'}
    done = lab.crawl(**given, LOG_LEVEL="DEBUG", DUPEFILTER_DEBUG=True)
    used = BloomFilter(lab.client, KEY)
    used.open()
    assert list(used.seeds) == seeds
    assert "Overridden settings" in done.log
    shown = done.log + json.dumps(done.stats)
    assert not [seed for seed in seeds if str(seed) in shown]
    assert done.log.count("BLOOM_SEEDS lists") == 1
