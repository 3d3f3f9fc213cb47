"""``scrapy bloom failed`` after real crawls: pages fail in all ways, and the command says how."""

from support.lab_commands import bloom
from support.odd_site import DENIED, ERROR, RESET, LabOf, Reply, moved, page

SECRET = "S3CRET"
SPIDER = """
class Failing(OddSpider):
    custom_settings = {"RETRY_ENABLED": False, "DOWNLOAD_TIMEOUT": 2}

    def parse(self, response):
        yield from self.links(response)
        if response.url.endswith("/raises"):
            raise KeyError("price")
        if response.url.endswith("/tells"):
            raise ValueError("not at https://user:S3CRET@example.com/x?key=S3CRET " + 500 * "x")
        if response.url.endswith("/"):
            meta = {"allow_offsite": True}
            yield Request("http://nothing.invalid/", callback=self.parse_other, meta=meta)

    def parse_other(self, response):
        pass
"""


def test_why_pages_have_failed(lab_of: LabOf) -> None:
    paths = ("/error", "/denied", "/reset", "/slow", "/raises", "/tells", "/fine")
    lab = lab_of({"/": page(*paths), "/error": ERROR, "/denied": DENIED, "/reset": RESET})
    lab.site.pages |= {"/slow": Reply(body=b"12345", drip=1.0), "/fine": page()}
    lab.site.pages |= {"/raises": page(), "/tells": page()}
    done = lab.crawl(SPIDER)
    assert done.stats["bloom/failed"] == 7
    stored = str([lab.client.hgetall(key) for key in lab.client.keys("*:claims")])
    assert "KeyError" in stored
    assert SECRET not in stored
    called = bloom(lab, "failed", "--json", spider=SPIDER)
    assert called.code == 0, called.err
    assert SECRET not in called.out
    assert (called.json["failed"], called.json["due"]) == (7, 0)
    failed = {one["url"].removeprefix(lab.site.url): one for one in called.json["pages"]}
    one = failed["/error"]
    assert (one["name"], one["attempts"], one["spider"]) == ("default", 1, "odd")
    assert one["due_utc"].endswith("Z")
    reasons = {path: one["reason"] for path, one in failed.items()}
    assert (reasons["/error"], reasons["/denied"]) == ("HTTP 500", "HTTP 403")
    assert "lookup failed" in reasons["http://nothing.invalid/"]
    assert "Timeout" in reasons["/slow"]
    assert "Connection" in reasons["/reset"]
    assert reasons["/raises"] == "parse: KeyError: 'price'"
    assert reasons["/tells"].startswith(
        "parse: ValueError: not at https://***@example.com/x?*** xxx"
    )
    assert len(reasons["/tells"]) <= 200


def test_a_page_fails_whose_redirects_target_of_another_window_fails_when_it_is_retried(
    lab_of: LabOf,
) -> None:
    """A retry of the target is no redirect of a retry, which would be dropped as known."""
    rules = '[["/listing", "run"]]'
    lab = lab_of({"/": page("/a"), "/a": moved("/listing"), "/listing": RESET})
    done = lab.crawl(BLOOM_RECRAWL_RULES=rules, RETRY_TIMES=1)
    assert done.hits["/listing"] == 2
    assert done.claims.keys() == {"/a"}
    assert "/a" not in done.recorded
    lab.site.pages["/listing"] = page()
    lab.make_due("/a")
    done = lab.crawl(BLOOM_RECRAWL_RULES=rules, RETRY_TIMES=1)
    assert done.hits["/listing"] == 1
    assert "/a" in done.recorded
