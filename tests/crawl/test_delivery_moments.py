"""No item is lost, however and whenever a crawl ends: 30 moments each, by every way and queue."""

import signal
from contextlib import ExitStack
from typing import Any

import pytest
from crawl.test_delivery import BATCHES, PAGES, SPIDER, Store, bulk
from support.odd_site import SHARED_QUEUE, Crawl, LabOf, tree
from support.polling import until

ENDS = ("kill", "SIGINT", "SIGINT twice", "SIGTERM", "CLOSESPIDER_PAGECOUNT")
CSV = {"format": "csv", "batch_item_count": 7}
#: How items are stored -> the feed, and how many items one write has; 0 if it has all.
WAYS: dict[str, tuple[dict[str, Any] | None, int]] = {
    "JSON lines in batches": (BATCHES, 4),
    "JSON in one file": ({"format": "json"}, 0),
    "CSV in batches": (CSV, 7),
    "a storage that refuses": (BATCHES, 4),
    "a pipeline that writes in bulk": (None, 7),
}
QUEUES = ("memory", "JOBDIR", "scrapy-redis with two workers")


def settings_of(store: Store, way: str, queue: str, *, refuses: bool) -> dict[str, Any]:
    feed, _ = WAYS[way]
    more: dict[str, Any] = SHARED_QUEUE if queue not in QUEUES[:2] else {}
    if queue == "JOBDIR":
        more = {"JOBDIR": store.lab.directory / "jobs"}
    if feed is None:
        return bulk(store, **more)
    return store.settings(feed, scheme="refusing:" if refuses else "", **more)


def end(crawl: Crawl, how: str) -> None:
    if how == "kill":
        crawl.kill()
    elif how != "CLOSESPIDER_PAGECOUNT" and not crawl.is_over:
        crawl.ask_to_stop(signal.SIGTERM if how == "SIGTERM" else signal.SIGINT)
        if how == "SIGINT twice" and not crawl.is_over:
            crawl.ask_to_stop(at_once=True)


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(1, 31))
@pytest.mark.parametrize("how", ENDS)
def test_a_run_that_ends_and_a_plain_one_store_all_items(
    lab_of: LabOf, how: str, moment: int
) -> None:
    """Each way and each queue has its turn, at two moments together."""
    store = Store(lab_of(tree(PAGES)))
    lab, way, queue = store.lab, [*WAYS][moment % len(WAYS)], QUEUES[moment // 5 % len(QUEUES)]
    settings = settings_of(store, way, queue, refuses=way == "a storage that refuses")
    if how == "CLOSESPIDER_PAGECOUNT":
        settings[how] = moment
    else:
        lab.site.hold_after(moment)
    workers = 2 if queue == QUEUES[2] else 1
    with ExitStack() as stack:
        crawls = [stack.enter_context(lab.start(SPIDER, **settings)) for _ in range(workers)]
        if how != "CLOSESPIDER_PAGECOUNT":
            until(lambda: all("Spider opened" in one.log for one in crawls), "all have begun")
            until(lambda: lab.site.held or crawls[0].is_over, "the crawl gets under way")
            end(crawls[0], how)
        lab.site.release()
        for crawl in crawls[how == "kill" :]:
            crawl.wait()
    if queue == "JOBDIR" and how in ("kill", "SIGINT twice"):
        settings["JOBDIR"] = lab.directory / "jobs again"  # Scrapy's own does not survive it
    settings.pop("CLOSESPIDER_PAGECOUNT", None)
    settings |= settings_of(store, way, "memory", refuses=False)
    done = lab.crawl(SPIDER, **settings)
    stored = store.rows() if WAYS[way][0] is None else store.items()
    assert stored.keys() - {"/"} == lab.site.pages.keys() - {"/"}
    assert not done.claims
    again = sum(stored.values()) - len(stored) - (stored["/"] - 1)
    # The thread of the pipeline may have written a second batch before the first is recorded.
    most = WAYS[way][1] * workers * (1 + (way == "a pipeline that writes in bulk"))
    assert again <= most or way in ("JSON in one file", "a storage that refuses")
