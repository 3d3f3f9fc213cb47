"""The last log lines of a crawl: what was new, and why nothing was. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime

from scrapy_bloom.bloom.protocol.info import FilterInfo
from scrapy_bloom.bloom.validators import plural


@dataclass(frozen=True, slots=True)
class Tally:
    """What one process has counted in one window.

    Args:
        new: requests that were new.
        seen: requests that were duplicates.
        failed: pages that failed.
        taken_over: requests that were left behind, and are crawled now.
        without_item: pages that were crawled and are read again in the next run.
        unknown: requests that count as new, because the server did not answer.
        offline: requests that were new to this process, while the server was down.
    """

    new: int
    seen: int
    failed: int
    taken_over: int = 0
    without_item: int = 0
    unknown: int = 0
    offline: int = 0

    @property
    def without_server(self) -> int:
        """Requests that were crawled without the server's answer."""
        return self.unknown + self.offline


def summary(tally: Tally, info: FilterInfo | None, *, has_versions: bool = False) -> str:
    """Return what a crawl did with a filter, and what the filter holds now, if that is known.

    A page that has a version is recorded with and without it, and both are counted.
    """
    listings = f" ({tally.without_item:,} without an item)" if tally.without_item else ""
    new = f"{tally.new:,} new{listings}"
    if tally.without_server:
        new += f", {tally.without_server:,} crawled without the server's answer"
    done = f"{new}, {tally.seen:,} seen, {tally.failed:,} failed in this process"
    if info is None:
        return f"{done}; how many URLs are remembered is not known"
    urls = plural(info.count, "URL is", "URLs are")
    if has_versions:
        urls = f"{info.count:,} URLs and versions of URLs are"
    text = f"{done}; {urls} remembered"
    if info.claims:
        pending = plural(info.claims, "is not crawled yet or has", "are not crawled yet or have")
        text += f", {pending} failed (scrapy bloom pending)"
    closes = info.generations[0].closes
    return f"{text}; the next rotation is on {day(closes)}" if closes else text


def nothing_new(tally: Tally, info: FilterInfo, *, names_pages: bool = False) -> str | None:
    """Return why a crawl found nothing new, and what to do; None if it found something.

    Args:
        tally: what was counted.
        info: the filter as it is now.
        names_pages: whether the project says already which pages are read again sooner.
    """
    if tally.new or tally.taken_over or tally.without_server or not tally.seen:
        return None
    since, due = day(info.generations[-1].opened), info.generations[-1].forgotten
    again = f", and is crawled again from {day(due)} on" if due else ""
    text = (
        f"nothing was new: each link that was found ({tally.seen:,}) is remembered, the oldest "
        f"since {since}{again}"
    )
    if info.claims:
        pages = plural(info.claims, "page")
        text += (
            f"; or it is pending ({pages}): another worker is crawling it, or it has failed and is "
            "tried again later (scrapy bloom pending)"
        )
    if names_pages:
        return text
    return (
        f"{text}. If some of these pages list others that are new, name them by "
        'meta={"bloom_recrawl_after": "run"} or BLOOM_RECRAWL_RULES, and each run reads them. A '
        'new filter needs no names with BLOOM_REMEMBER = "items"'
    )


def day(time: int) -> str:
    """Return a Unix time as text, with seconds if there are any."""
    seconds = ":%S" if time % 60 else ""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M{seconds} UTC}"
