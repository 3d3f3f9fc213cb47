"""BLOOM_REMEMBER = "crawled" in crawls that end early: the next run crawls what is left.

Each crawl is a process of its own; the site is in this one.
"""

from collections import Counter

import pytest
from support.ends import ENDS
from support.odd_site import TREE, LabOf, page, tree

PAGES = 60


@pytest.mark.parametrize(
    ("end", "fetched_twice"),
    [
        ("page count", 0),
        ("SIGTERM", 0),  # SIGINT does the same
        ("SIGINT twice", None),
        ("SIGKILL", None),
    ],
)
def test_the_next_run_crawls_what_this_one_has_not(
    lab_of: LabOf, end: str, fetched_twice: int | None
) -> None:
    """After a clean stop nothing is fetched twice; else, nothing that was recorded."""
    lab = lab_of(tree(PAGES))
    ENDS[end](lab, TREE)
    before, recorded, claimed = lab.site.hits(), lab.recorded(), lab.claims().keys()
    assert recorded < lab.site.pages.keys() - {"/"}
    assert claimed
    assert lab.workers()
    done = lab.crawl(TREE)
    everything = lab.site.pages.keys() - {"/"}
    assert lab.recorded() == everything
    assert not lab.claims()
    assert not lab.workers()
    twice = before.keys() & done.hits.keys() - {"/"}
    # What was killed between its record and the end of its claim has both.
    assert twice & recorded <= claimed
    assert max(done.hits.values()) == 1
    if fetched_twice is not None:
        assert len(twice) == fetched_twice
    assert done.stats["bloom/taken_over"] > 0


CHANGED = """
from support.odd_site import OddSpider

class ChangedSpider(OddSpider):
    def parse(self, response):
        return self.links(response, callback=self.CALLBACK)

    def CALLBACK(self, response):
        pass
"""


def test_a_request_whose_callback_is_gone_waits_to_be_found_again(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/a"), "/a": page()})
    lab.kill_midway(1, CHANGED.replace("CALLBACK", "parse_old"))
    lab.site.pages["/"] = page()
    changed = CHANGED.replace("CALLBACK", "parse_new")
    done = lab.crawl(changed)
    assert done.stats["bloom/not_restored"] == 1
    assert "parse_old" in done.log
    assert done.hits == Counter(["/"])
    assert not lab.claims()
    lab.site.pages["/"] = page("/a")
    lab.crawl(changed)
    assert lab.recorded() == {"/a"}
