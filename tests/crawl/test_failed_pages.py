"""Pages that fail in all ways: what is stored of them, and when they are crawled again."""

import json
from collections import Counter

from support.odd_site import DENIED, ERROR, RESET, LabOf, Reply, moved, page

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
    assert {one[0] for one in claims} == {"-"}
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


LAMBDA = """
class LambdaSpider(OddSpider):
    custom_settings = {"RETRY_ENABLED": False}

    def parse(self, response):
        return self.links(response, callback=lambda response: self.parse(response))
"""


def test_a_page_fails_with_a_request_that_cannot_be_stored_and_yields_it_again(
    lab_of: LabOf,
) -> None:
    """Nobody else could: a page that has no claim, as the start page, yields it in each run."""
    lab = lab_of({"/": page("/a"), "/a": page("/b", "/c"), "/b": ERROR, "/c": page()})
    done = lab.crawl(LAMBDA)
    assert done.recorded == {"/c"}
    assert done.claims.keys() == {"/a", "/b"}
    assert done.stats["bloom/failed"] == 2
    assert lab.crawl(LAMBDA).hits == Counter(["/"]), "they are not due"
    lab.site.pages["/b"] = page()
    lab.make_due()
    done = lab.crawl(LAMBDA)
    assert done.hits == Counter(["/", "/a", "/b"])
    assert done.recorded == {"/a", "/b", "/c"}
    assert not done.claims
