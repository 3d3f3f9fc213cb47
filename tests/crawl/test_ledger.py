"""``BLOOM_LEDGER``: pages that no page links any more are fetched again, once in every window."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support.clock import MovedServer
from support.odd_site import Done, Lab, page, serve

LEDGER: dict[str, Any] = {"BLOOM_LEDGER": True, "BLOOM_RECRAWL_AFTER": "6 months"}
PAGES = [f"/{number}" for number in range(40)]


@pytest.fixture
def lab(moved: MovedServer, tmp_path: Path) -> Iterator[Lab]:
    """A site of a start page that links all others."""
    with serve({"/": page(*PAGES), **{path: page("/") for path in PAGES}}) as site:
        yield Lab(site, moved.url, tmp_path)


def move_to(moved: MovedServer, year: int, month: int, day: int) -> None:
    moved.set_time(datetime(year, month, day, 12, tzinfo=timezone.utc))


def crawl(lab: Lab, **settings: Any) -> Done:
    return lab.crawl(**{**LEDGER, **settings})


def test_a_page_that_lost_its_link_is_fetched_again_when_it_is_forgotten(
    lab: Lab, moved: MovedServer
) -> None:
    first = crawl(lab)
    assert first.stats["bloom/ledger_added"] == len(PAGES)
    lab.site.pages["/"] = page(*PAGES[:30])
    move_to(moved, 2027, 6, 20)
    assert crawl(lab).hits == Counter(["/"])
    move_to(moved, 2027, 7, 20)
    again = crawl(lab)
    assert again.hits == Counter(["/", *PAGES])
    assert again.stats["bloom/ledger_due"] == len(PAGES)
    assert again.stats["bloom/proposed"] == 10
    assert crawl(lab).hits == Counter(["/"])
    move_to(moved, 2028, 1, 20)
    assert crawl(lab).hits == Counter(["/", *PAGES])


def test_without_a_ledger_it_is_not(lab: Lab, moved: MovedServer) -> None:
    """So that the test above can fail."""
    crawl(lab, BLOOM_LEDGER=False)
    lab.site.pages["/"] = page(*PAGES[:30])
    move_to(moved, 2027, 7, 20)
    assert crawl(lab, BLOOM_LEDGER=False).hits == Counter(["/", *PAGES[:30]])
