"""What crawls warn about, and ``scrapy bloom doctor`` finds: each function returns it, or None.

Pure: on settings, and on what was read from the server.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from scrapy.settings import BaseSettings

from scrapy_bloom.bloom.model.forecast import saved_by_capacity
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, SECONDS, Schedule
from scrapy_bloom.bloom.protocol.info import FilterInfo
from scrapy_bloom.bloom.protocol.scripts import Acknowledged
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.crawl.stats import Tally
from scrapy_bloom.crawl.workers import Queue

_HOUR_SECONDS = 3_600
#: Seconds of the shortest month, and of the shortest half of one.
_MONTH_SECONDS, _HALF_MONTH_SECONDS = 28 * 86_400, 13 * 86_400


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    Args:
        problem: what is wrong.
        why: why it matters.
        remedy: what to do about it.
    """

    problem: str
    why: str
    remedy: str

    def __str__(self) -> str:
        """Return the warning of a crawl."""
        return f"{self.problem}: {self.why}. {self.remedy}"


#: Of a ledger whose pages are never due.
LEDGER_UNUSED = Finding(
    "BLOOM_LEDGER is set, and no filter has a window",
    "no page is ever forgotten, so none is due",
    'Set BLOOM_RECRAWL_AFTER, as in "6 months", and run scrapy bloom settings --apply; or remove '
    "BLOOM_LEDGER",
)


def on_eviction(policy: str, *, has_window: bool) -> Finding | None:
    """Advise on the server's ``maxmemory-policy``.

    Keys of a filter with a window have a time to live: ``volatile-*`` evicts them, and them only.
    """
    if policy in ("", "noeviction") or (policy.startswith("volatile-") and not has_window):
        return None
    return Finding(
        f"the Redis server's maxmemory-policy is {policy}",
        "when its memory is full it may delete a part of the filter, and the URLs in it are "
        "crawled again",
        "Set it to noeviction, or give the filter a server of its own with BLOOM_REDIS_URL",
    )


def on_queue(queue: Queue) -> Finding | None:
    """Advise on a queue that is lost while what is in it counts as seen."""
    if queue.survives_kill and queue.survives_stop:
        return None
    when = "is killed" if queue.survives_stop else "is killed or stopped"
    remedy = ", or keep the queue with SCHEDULER_PERSIST = True" if queue.is_shared else ""
    return Finding(
        'BLOOM_REMEMBER = "scheduled" remembers a URL before its page is crawled, and '
        f"{queue.kind} is lost when the crawl {when}",
        "the pages in it are then not crawled, not before they are forgotten",
        f'Set BLOOM_REMEMBER = "crawled"{remedy}',
    )


def on_claims_ignored(count: int) -> Finding | None:
    """Advise on claims where a URL is remembered once it is scheduled."""
    if not count:
        return None
    return Finding(
        f"{plural(count, 'request is', 'requests are')} claimed, left by a crawl that has ended or "
        "being crawled by another one",
        'BLOOM_REMEMBER = "scheduled" does not take them over, and their pages may never be found '
        "again",
        "Run the spider once with -s BLOOM_REMEMBER=crawled; scrapy bloom pending lists and ends "
        "claims",
    )


def on_replicas(acknowledged: Acknowledged) -> Finding:
    """Advise on replicas that are missing or late."""
    replicas, refusal = acknowledged
    if refusal:
        problem = f"the server refuses WAIT ({refusal})"
        remedy = "Allow it to this user"
    else:
        problem = f"a primary had {replicas} replicas in time that have all it wrote"
        remedy = "Repair the replicas"
    return Finding(
        f"{problem}, fewer than BLOOM_WAIT_REPLICAS",
        "pages are recorded all the same (bloom/unreplicated counts them), and a primary that "
        "fails together with a crawler may lose links of theirs",
        f"{remedy}, or lower BLOOM_WAIT_REPLICAS (0 does not wait)",
    )


def on_http_cache(settings: BaseSettings, schedule: Schedule | None) -> Finding | None:
    """Advise on an HTTP cache that serves old pages where they should be crawled again.

    Args:
        settings: Scrapy's.
        schedule: when the filter forgets.
    """
    policy = str(settings.get("HTTPCACHE_POLICY"))
    if not settings.getbool("HTTPCACHE_ENABLED") or "DummyPolicy" not in policy:
        return None
    seconds = settings.getint("HTTPCACHE_EXPIRATION_SECS")
    if seconds <= 0:
        return Finding(
            "HTTPCACHE_ENABLED with HTTPCACHE_EXPIRATION_SECS = 0 never expires",
            "a later crawl reads the old pages from the cache",
            "Set an expiration shorter than the time between crawls",
        )
    shortest = _shortest_age(schedule)
    if schedule is None or not shortest or seconds <= shortest:
        return None
    return Finding(
        f"HTTPCACHE_ENABLED with HTTPCACHE_EXPIRATION_SECS = {seconds} keeps pages for longer than "
        f"the filter remembers some URLs (they are crawled again {schedule.age})",
        "a page that is crawled again may be the old one from the cache",
        f"Set HTTPCACHE_EXPIRATION_SECS to {shortest} at most, or a longer BLOOM_RECRAWL_AFTER",
    )


def _shortest_age(schedule: Schedule | None) -> int:
    """Return after how many seconds a URL is new again at least; 0 if no clock decides it.

    Without a part of the window (one generation), it is the window.
    """
    if schedule is None or schedule.counts_runs:
        return 0
    window, period = schedule.window.count, schedule.period.count
    count = window - period if window > period else window
    if schedule.window.unit != HALF_MONTHS:
        return count
    return count // 2 * _MONTH_SECONDS + count % 2 * _HALF_MONTH_SECONDS


def on_seeds(seeds: tuple[int, ...] | int | None) -> Finding | None:
    """Advise on seeds that are written down."""
    if not isinstance(seeds, tuple):
        return None
    return Finding(
        "BLOOM_SEEDS lists the seeds of the hash functions",
        "a site that knows them can choose URLs that make any page count as seen",
        "Keep the list as secret as a password; or remove it and set another BLOOM_KEY, because "
        "the seeds of a new filter are drawn at random",
    )


def on_fingerprinter(stored: str, ours: str) -> Finding | None:
    """Advise on fingerprints of another kind than those in the filter."""
    if stored in ("", ours):
        return None
    return Finding(
        f"the filter was filled with fingerprints of {stored!r:.200}, and this crawl uses {ours} "
        "(REQUEST_FINGERPRINTER_CLASS)",
        "URLs that are in it look new",
        "Use the same class, or another BLOOM_KEY",
    )


def on_capacity(info: FilterInfo) -> Finding | None:
    """Advise on a filter that is nearly full and cannot grow."""
    active = info.generations[0]
    if info.growth or active.fill_ratio < 0.8:
        return None
    return Finding(
        f"the active generation holds {active.count:,} of {active.capacity:,} URLs, and "
        "BLOOM_GROWTH = 0",
        _ON_FULL,
        "Set BLOOM_GROWTH = 2, or a larger BLOOM_CAPACITY",
    )


_ON_FULL = (
    "when it is full, the oldest generation is forgotten early; if all generations are of this "
    "period, further URLs are remembered by each process for its run only"
)


def on_filling(ring: Ring) -> str:
    """Advise on a generation that is filled to 80% of its capacity."""
    urls = ring.header.blocks * sum(layer.capacity for layer in ring.active.layers)
    text = (
        f"a generation is filled to 80% of its {urls:,} URLs (predicted false-positive rate when "
        f"it is full: {ring.error_bound:.2g})"
    )
    if ring.config.growth:
        return f"{text}; then it grows"
    return f"{text}, and BLOOM_GROWTH = 0: {_ON_FULL}. Set a larger BLOOM_CAPACITY"


def on_growth(ring: Ring) -> str:
    """Advise on a generation that has outgrown its capacity."""
    urls, saved = saved_by_capacity(ring)
    text = (
        f"a generation holds more URLs than BLOOM_CAPACITY = {ring.config.capacity:,} and grows, "
        f"now to {urls:,} (the false-positive rate stays below {ring.error_bound:.2g})"
    )
    if not saved:
        return text
    return (
        f"{text}. BLOOM_CAPACITY = {urls} would take {saved / (1 << 20):.1f} MiB less; it counts "
        "from the next generation on"
    )


def on_full(ring: Ring) -> str:
    """Advise on a generation that is full and cannot grow."""
    limit = "BLOOM_GROWTH = 0"
    if ring.config.growth:
        limit = f"BLOOM_MAX_MEMORY = {ring.config.max_memory:,}" if ring.config.max_memory else ""
    why = f" because of {limit}" if limit else ""
    return (
        f"the filter is full, and cannot grow{why}: further URLs are remembered by this process "
        "for this run only (bloom/unrecorded counts them), so that none is hidden; recording them "
        f"would raise the false-positive rate above {ring.error_bound:.2g}. Set a larger "
        "BLOOM_CAPACITY (it counts from the next generation on), BLOOM_GROWTH or BLOOM_MAX_MEMORY"
    )


def on_early_rotation(ring: Ring) -> str:
    """Advise on a generation that was closed before its time."""
    return (
        "a generation was full and could not grow, so the filter rotated early: what it remembers "
        "may be crawled again a period before its time. Set a larger BLOOM_CAPACITY (now "
        f"{ring.config.capacity:,}), BLOOM_GROWTH or BLOOM_MAX_MEMORY"
    )


def pairs(before: Config, after: Config | FilterInfo) -> tuple[tuple[str, object, object], ...]:
    """Return the settings that may change, each with both values."""
    return (
        ("BLOOM_RECRAWL_AFTER", before.window, after.window),
        ("BLOOM_ROTATE_EVERY", before.period, after.period),
        ("BLOOM_CAPACITY", before.capacity, after.capacity),
        ("BLOOM_ERROR_RATE", before.error_rate, after.error_rate),
        ("BLOOM_GROWTH", before.growth, after.growth),
        ("BLOOM_MAX_MEMORY", before.max_memory, after.max_memory),
    )


def changes(before: Config, after: Config | FilterInfo) -> list[tuple[str, object, object]]:
    """Return the settings that differ, each with both values."""
    return [pair for pair in pairs(before, after) if pair[1] != pair[2]]


def changes_times(before: Config, after: Config | FilterInfo) -> bool:
    """Whether another window or period than the stored one holds now."""
    return (before.window, before.period) != (after.window, after.period)


def on_difference(stored: Config, wanted: Config) -> Finding | None:
    """Advise on settings that differ from the stored ones, before a crawl applies them."""
    found = changes(stored, wanted)
    if not found:
        return None
    texts = [f"{name} = {said(name, new)} (stored: {said(name, old)})" for name, old, new in found]
    why = "the next crawl applies the settings to the filter, sizes to what it makes from then on"
    if changes_times(stored, wanted):
        why += ", times at once: nothing is crawled again earlier than before"
    keep = [f"{name} = {_written(name, old)}" for name, old, _ in found]
    return Finding(
        f"settings differ from those of the stored filter: {', '.join(texts)}",
        why,
        f"If that is not meant, set {', '.join(keep)}",
    )


def said(name: str, value: object) -> str:
    """Return the value of a setting in words."""
    if value is None:
        return "none" if name == "BLOOM_MAX_MEMORY" else "never"
    return f"{value:,}" if isinstance(value, int) else f"{value}"


def _written(name: str, value: object) -> str:
    """Return the value of a setting as it is set."""
    if value is None:
        return "0" if name == "BLOOM_MAX_MEMORY" else '"never"'
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def on_short_window(schedule: Schedule | None) -> Finding | None:
    """Advise on a window that is so short that it is probably a mistake."""
    if schedule is None or schedule.window.unit != SECONDS:
        return None
    if schedule.window.count >= _HOUR_SECONDS:
        return None
    return Finding(
        f"BLOOM_RECRAWL_AFTER = {schedule.window} is less than an hour",
        f"everything is crawled again {schedule.age}",
        'If that is not meant, stop the crawl and write the unit that is, as in "2 months"',
    )


def on_change(before: Config, after: FilterInfo, since: str) -> str:
    """List the stored settings that were replaced, with the consequences of new times.

    Args:
        before: what was stored.
        after: the filter as it is now.
        since: the day from which on it remembers what was seen.
    """
    texts = [
        f"{name} = {said(name, new)} (was {said(name, old)})"
        for name, old, new in changes(before, after)
    ]
    text = (
        f"settings of the stored filter changed: {', '.join(texts)}. Times hold from now on, sizes "
        f"from the next {'generation' if after.window else 'layer'} on"
    )
    if not changes_times(before, after):
        return text
    return (
        f"{text}. The new times hold for all URLs in the filter (those seen since {since}), and "
        "nothing is crawled again earlier than before. A run with the times of before is refused "
        "from now on: if another spider uses this BLOOM_KEY with other times, give each a "
        "BLOOM_KEY of its own, or both the same BLOOM_RECRAWL_AFTER and BLOOM_ROTATE_EVERY; to go "
        "back to the times of before, run scrapy bloom settings --apply with them"
    )


#: Under ``BLOOM_REMEMBER = "items"``.
NO_LISTING_READ = (
    "no listing was read but start pages. One that was remembered before BLOOM_REMEMBER was "
    '"items" stays so: scrapy bloom clear makes all pages new'
)


def nothing_new(tally: Tally, info: FilterInfo, *, names_pages: bool = False) -> str | None:
    """Return why a crawl found nothing new, and what to do; None if it found something.

    Args:
        tally: what was counted.
        info: the filter as it is now.
        names_pages: whether the project says already which pages are read again sooner.
    """
    # Listings that are read in each run say nothing.
    has_new = tally.new > tally.without_item
    if has_new or tally.taken_over or tally.without_server or not tally.seen:
        return None
    since, due = day(info.generations[-1].opened), info.generations[-1].forgotten
    again = f", and is crawled again from {day(due)} on" if due else ""
    found = f"nothing was new: each link that was found ({tally.seen:,}) is"
    why = (
        "another worker is crawling it, or it has failed and is tried again later (scrapy bloom "
        "pending)"
    )
    if not info.count:
        return f"{found} pending: {why}"
    text = f"{found} remembered, the oldest since {since}{again}"
    if info.claims:
        text += f"; or it is pending ({plural(info.claims, 'page')}): {why}"
    if names_pages:
        return text
    return (
        f"{text}. If some of these pages list others that are new, name them by "
        'meta={"bloom_recrawl_after": "run"} or BLOOM_RECRAWL_RULES = [("/page-", "run")], and '
        'each run reads them; or set BLOOM_REMEMBER = "items" and run scrapy bloom clear, which '
        "makes all pages new: without it, the listings stay remembered"
    )


def day(time: int) -> str:
    """Return a Unix time as text, with seconds if there are any."""
    seconds = ":%S" if time % 60 else ""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M{seconds} UTC}"
