"""Workers and spiders beside each other: what one leaves behind, another one crawls."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from support.odd_site import LabOf, serve, star, tree
from support.paths import TESTS

from scrapy_bloom.bloom.client.embedded import is_free

PAGES = 30

OTHER = """
class OtherSpider(OddSpider):
    name = "other"
"""
BOTH = {"BLOOM_KEY": "both"}


def test_what_a_spider_that_never_runs_again_has_claimed_is_crawled_by_another_one(
    lab_of: LabOf,
) -> None:
    """Both use one filter, and link the same pages."""
    lab = lab_of(star(PAGES))
    lab.kill_midway(6, OTHER, **BOTH)
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
from support.spiders import OddSpider

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
        command = [sys.executable, "-X", "dev", "-c", TWO_SPIDERS, *map("=".join, settings.items())]
        done = subprocess.run(
            command, cwd=TESTS, capture_output=True, text=True, timeout=300, check=False
        )
        assert site.hits() == Counter([*site.pages] * 2)
    assert done.returncode == 0
    assert "ERROR" not in done.stderr
    assert "scrapy_bloom" not in "".join(re.findall(r".*Warning: .*", done.stderr))
    assert is_free(tmp_path / "server.lock"), "the server still runs"
