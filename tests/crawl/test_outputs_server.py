"""A page's links are looked up together on a server that fails, is slow, or is cleared."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.counting import COUNTING, PAGES, REMEMBER, assert_ended_well, spider
from support.odd_site import Lab, LabOf, tree
from support.polling import until
from support.proxy import PASS, Fault, Kind, Proxy


@contextmanager
def proxied(lab: Lab) -> Iterator[tuple[Proxy, str]]:
    """Yield a proxy to the server of a lab, and the address of the lab's database there."""
    address, _, database = lab.redis_url.rpartition("/")
    with Proxy(int(address.rpartition(":")[2])) as proxy:
        yield proxy, proxy.url.removesuffix("/0") + f"/{database}"


@REMEMBER
@pytest.mark.parametrize("kind", [Kind.HANG, Kind.RESET_REQUEST, Kind.DROP_REPLY])
def test_no_page_is_hidden_by_a_server_that_fails_midway(
    lab_of: LabOf, kind: Kind, remember: str
) -> None:
    lab = lab_of(tree(PAGES))
    with proxied(lab) as (proxy, url):
        lab.site.hold_after(15)
        settings = {
            "BLOOM_REDIS_URL": url,
            "BLOOM_TIMEOUT": 0.5,
            "BLOOM_REMEMBER": remember,
        }
        with lab.start(COUNTING, **settings) as crawl:
            until(lambda: lab.site.held or crawl.is_over, "the crawl gets under way")
            proxy.fault = Fault(kind)
            lab.site.hold_after(15)
            until(lambda: proxy.struck or crawl.is_over, "the server is missed")
            proxy.fault = PASS
            back = proxy.requests + 1  # a crawl that ends waits no longer than BLOOM_TIMEOUT
            until(lambda: proxy.requests > back or crawl.is_over, "the server is used again")
            lab.site.release()
            stats = crawl.wait()
    assert stats["finish_reason"] == "finished"
    assert lab.site.hits() == Counter(lab.site.pages.keys())
    assert lab.recorded() == lab.site.pages.keys() - {"/"}
    assert not lab.claims()


@REMEMBER
def test_callbacks_that_block_the_crawl_are_no_outage(lab_of: LabOf, remember: str) -> None:
    lab = lab_of(tree(12))
    code = spider("""
def parse(self, response):
    import time
    for request in self.links(response):
        yield request
        time.sleep(0.2)
""")
    # A page blocks for longer than that: its links are gathered without a turn of the loop.
    done = lab.crawl(code, BLOOM_REMEMBER=remember, BLOOM_TIMEOUT=0.3)
    assert done.hits == Counter(lab.site.pages.keys())
    assert "bloom/outages" not in done.stats
    assert_ended_well(done)
