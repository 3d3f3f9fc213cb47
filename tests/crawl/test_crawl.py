"""Real crawls: with scrapy-redis, with bad settings, of several spiders in one process."""

import re
from collections import Counter
from pathlib import Path

import pytest
import redis
from example_site.build import Site
from example_site.serve import SiteServer
from scrapy import version_info
from support.crawling import options, run, run_scrapy

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.embedded import is_free

# -- bad input: an error before any request is lost --


@pytest.mark.parametrize(
    ("settings", "message", "code"),
    [
        ({"BLOOM_CAPACITY": "many"}, "BLOOM_CAPACITY = 'many' can't be used", "configuration"),
        ({"BLOOM_REDIS_URL": "redis://:s3cret@127.0.0.1:1"}, "can't be reached", "not-ready"),
        ({"BLOOM_BLOCKS": "3"}, "Remove BLOOM_BLOCKS", "filter-mismatch"),
    ],
)
def test_what_cannot_be_used_stops_the_crawl_before_it_fetches(
    web: SiteServer, redis_url: str, settings: dict[str, str], message: str, code: str
) -> None:
    """It is an error in one line, the last one."""
    with redis.Redis.from_url(redis_url) as client:
        BloomFilter(client, "links:bloom").open()
    settings = {"BLOOM_REDIS_URL": redis_url, **settings}
    done = run_scrapy("crawl", "links", *options(web, settings))
    last = done.stderr.strip().splitlines()[-1]
    assert message in last, done.stderr
    assert "[scrapy_bloom.crawl.short_errors] " in last
    assert last.endswith(f" [bloom-{code}]")
    assert "s3cret" not in done.stderr
    assert "Waiting for it" not in done.stderr
    assert "exception was the direct cause" not in done.stderr
    assert "During handling of the above" not in done.stderr
    assert not web.hits(), "requests were lost"
    # Scrapy 2.13 ends with exit code 0 whatever goes wrong while a spider opens.
    assert done.returncode != 0 or version_info < (2, 14)


# -- several spiders --

TWO_SPIDERS = """
import sys
from magazine.spiders.links import LinksSpider
from scrapy.crawler import CrawlerProcess
from scrapy.utils.project import get_project_settings

settings = get_project_settings()
settings.setdict(dict(pair.split("=", 1) for pair in sys.argv[1:]), "cmdline")
process = CrawlerProcess(settings)
for name in ("first", "second"):
    process.crawl(type("Named", (LinksSpider,), {"name": name}))
process.start()
"""


def test_spiders_in_one_process_have_filters_of_their_own(
    site: Site, web: SiteServer, tmp_path: Path
) -> None:
    """On one embedded server, which the second of them stops; nothing is left open."""
    data = tmp_path / "data"
    settings = {"SITE_URL": web.url, "BLOOM_REDIS_URL": f"embedded:{data}"}
    pairs = [f"{name}={value}" for name, value in settings.items()]
    done = run("-X", "dev", "-c", TWO_SPIDERS, *pairs)
    assert done.returncode == 0
    assert "ERROR" not in done.stderr
    assert "scrapy_bloom" not in "".join(re.findall(r".*Warning: .*", done.stderr))
    pages = Counter(site.truth().crawl())
    assert web.hits() == pages + pages
    assert is_free(data / "server.lock"), "the server still runs"
