"""Two spiders on one filter: what one has found and left, the other crawls if it links it too."""

from collections.abc import Callable
from signal import SIGINT
from typing import Any

import pytest
from support.odd_site import TREE, Lab, LabOf, page
from support.polling import until

KEY = "both"
LEAVES = [f"/{number}" for number in range(30)]
#: Of another spider; nothing else links them.
DEEP = [f"/deep{number}" for number in range(5)]
SITE = {"/": page(*LEAVES), **{leaf: page() for leaf in LEAVES}}
SETTINGS: dict[str, Any] = {"BLOOM_KEY": KEY, "BLOOM_HEARTBEAT": 1}


def named(name: str, more: str = "") -> str:
    """Return a spider, which follows all links."""
    head = "class TreeSpider(OddSpider):\n"
    return TREE.replace(head, f'{head}    name = "{name}"\n{more}')


A, B = named("a"), named("b")


def kill(lab: Lab, spider: str = A) -> None:
    lab.kill_midway(8, spider, **SETTINGS)


def stop(lab: Lab, spider: str = A) -> None:
    lab.stop_midway(8, spider, SIGINT, **SETTINGS)


def close(lab: Lab, spider: str = A) -> None:
    lab.crawl(spider, CLOSESPIDER_PAGECOUNT=5, **SETTINGS)


@pytest.mark.parametrize("end", [kill, stop, close])
def test_what_a_spider_has_left_is_crawled_by_another_that_links_it(
    lab_of: LabOf, end: Callable[[Lab], None]
) -> None:
    lab = lab_of(SITE)
    end(lab)
    left = {path for path, claim in lab.claims(KEY).items() if claim.kind == "w"}
    assert left
    lab.site.release()
    done = lab.crawl(B, **SETTINGS)
    assert done.hits.keys() >= left
    assert done.recorded >= {*LEAVES}
    assert not done.claims
    assert done.stats["bloom/taken_over"] == len(left)
    assert lab.crawl(A, **SETTINGS).hits == {"/": 1}


def test_pages_of_a_spider_that_lives_are_crawled_once_it_is_gone_for_ever(lab_of: LabOf) -> None:
    """The page that links them is recorded by then, and does not link them again."""
    lab = lab_of({"/": page("/list"), "/list": page(*LEAVES), **{leaf: page() for leaf in LEAVES}})
    slow = A.replace('"/"', '"/list"')
    with lab.start(slow, DOWNLOAD_DELAY=100, **SETTINGS) as other:
        until(lambda: len(lab.claims(KEY)) == len(LEAVES) or other.is_over, "A has found all")
        done = lab.crawl(B, **SETTINGS)
        assert done.hits == {"/": 1, "/list": 1}
        assert done.claims.keys() == {*LEAVES}
        other.kill()
    again = lab.crawl(B, **SETTINGS)
    assert again.hits.keys() == {"/", *LEAVES}
    assert not again.claims


def test_a_spider_gets_what_the_other_does_not_link(lab_of: LabOf) -> None:
    lab = lab_of({**SITE, "/": page(*DEEP, *LEAVES), **{name: page() for name in DEEP}})
    kill(lab)
    lab.site.pages["/"] = page(*LEAVES)
    lab.site.release()
    left = lab.claims(KEY).keys() & {*DEEP}
    assert lab.crawl(B, **SETTINGS).claims.keys() == left
    assert lab.crawl(A, **SETTINGS).hits.keys() == {"/", *left}
