"""What a user sees of a setting or a server that cannot be used: one line, and it is the last."""

import pytest
from example_site.serve import SiteServer
from support.crawling import options, run_scrapy


@pytest.mark.parametrize(
    ("settings", "message", "code"),
    [
        (
            {"BLOOM_CAPACITY": "many"},
            "BLOOM_CAPACITY is the number of URLs to remember",
            "configuration",
        ),
        (
            {"BLOOM_REDIS_URL": "redis://127.0.0.1:1"},
            "redis://127.0.0.1:1/0 is not there: start",
            "storage",
        ),
    ],
)
def test_an_unusable_setting_or_server_is_one_line(
    web: SiteServer, redis_url: str, settings: dict[str, str], message: str, code: str
) -> None:
    done = run_scrapy("crawl", "links", *options(web, {"BLOOM_REDIS_URL": redis_url, **settings}))
    log = done.stderr.strip()
    assert message in log.splitlines()[-1]
    assert "[scrapy_bloom.dupefilter] " in log.splitlines()[-1]
    assert log.endswith(f" [bloom-{code}]")
    assert "exception was the direct cause" not in log
    assert "During handling of the above" not in log


def test_other_errors_of_scrapy_keep_their_tracebacks(web: SiteServer, redis_url: str) -> None:
    settings = {"BLOOM_REDIS_URL": redis_url, "DOWNLOADER": "nowhere.Nothing"}
    done = run_scrapy("crawl", "links", *options(web, settings))
    assert "Traceback" in done.stderr
    assert "No module named 'nowhere'" in done.stderr
