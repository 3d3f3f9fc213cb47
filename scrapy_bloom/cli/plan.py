"""``scrapy bloom plan``: estimates the memory of a filter, without a server.

It starts from the settings of the project, but with `--window` it ignores their
BLOOM_ROTATE_EVERY. The table shows what happens if a generation gets more URLs than planned,
because a filter that is full grows. The error rate is that of all generations together, if each has
as many URLs.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

from scrapy.settings import SETTINGS_PRIORITIES, Settings

from scrapy_bloom.bloom.model.bitmap import Bitmap
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.model.sizing import any_of, predicted_error_rate
from scrapy_bloom.bloom.model.spec import Options, Spec
from scrapy_bloom.cli.output import rate, report, size
from scrapy_bloom.cli.project import target
from scrapy_bloom.settings import BloomSettings

HELP = "estimate the memory of a filter, without a server"
EXAMPLES = """\
scrapy bloom plan --urls 10000000 --window "6 months"
scrapy bloom plan --error-rate 1e-4"""
#: URLs of a generation in the rows of the table, as multiples of the plan.
LOADS = (0.5, 1, 2, 3, 5, 10)
#: Bytes of a pending request, and how many there are, as a share of the URLs of a generation.
PENDING_BYTES, PENDING_SHARE = 330, 0.1
#: What Redis should have beyond its data.
SPARE = 1.25
WINDOW = "BLOOM_RECRAWL_AFTER"
OPTIONS = {
    "--urls": ("BLOOM_CAPACITY", "N", "plan for this number of URLs (default BLOOM_CAPACITY)"),
    "--error-rate": ("BLOOM_ERROR_RATE", "R", "miss at most this share of new pages"),
    "--window": (WINDOW, "W", 'remember URLs for this time, for example "2 months"'),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    for flag, (setting, metavar, text) in OPTIONS.items():
        parser.add_argument(flag, dest=setting, metavar=metavar, help=text)


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Print the memory of a filter."""
    given = {name: value for name, *_ in OPTIONS.values() if (value := getattr(opts, name))}
    is_typed = settings.getpriority("BLOOM_ROTATE_EVERY") == SETTINGS_PRIORITIES["cmdline"]
    if WINDOW in given and not is_typed:  # the project's may not suit the window
        given["BLOOM_ROTATE_EVERY"] = None
    settings.setdict(given, priority="cmdline")
    # Without a name, the settings of the project count, and not those of its spiders.
    own = target(settings, opts).settings if opts.spider else BloomSettings.read(settings, "spider")
    schedule, spec = own.schedule(), Options(**own.options()).create(own.schedule())
    bitmaps, pending = needed(own)
    redis = round((bitmaps + pending) * SPARE)
    numbers = {
        "capacity": spec.capacity,
        "window": str(schedule),
        "generations": schedule.generations,
        "hash_functions": len(spec.seeds),
        "shards": spec.blocks,
        "bitmaps": bitmaps,
        "pending_requests": pending,
        "redis": redis,
    }
    text = f"BLOOM_CAPACITY = {spec.capacity:_}, window {schedule}, "
    text += f"error rate {rate(spec.error_rate)}, {len(spec.seeds)} hash functions\n"
    if schedule.period:
        first = f"A first crawl within {schedule.period} has all its URLs in one generation"
        text += f"{first}, so plan for the whole site\n"
    text += (
        f"Redis needs {size(redis)}: {size(bitmaps)} for bitmaps (generations: "
        f"{schedule.generations}), {size(pending)} for pending requests if a tenth of the URLs "
        "waits, and a quarter more"
    )
    report(opts, numbers, list(_rows(spec, schedule)), text)
    return True


def needed(own: BloomSettings) -> tuple[int, int]:
    """Return the bytes that a filter's bitmaps take with these settings, and pending requests."""
    spec, bitmaps = Options(**own.options()).create(own.schedule()), 0
    for schedule in own.rules().schedules.values():
        bitmap = _first_bitmap(spec, schedule)
        bitmaps += bitmap.memory * spec.blocks * schedule.generations
    return bitmaps, own.makes_claims * round(spec.capacity * PENDING_SHARE * PENDING_BYTES)


def _first_bitmap(spec: Spec, schedule: Schedule) -> Bitmap:
    return spec.first_bitmap(schedule, *schedule.bounds(int(time.time())), 0)


def _rows(spec: Spec, schedule: Schedule) -> Iterator[dict[str, Any]]:
    """Yield the memory of a generation with some URLs, and the error rate if all have as many."""
    for load in LOADS:
        urls = max(1, round(spec.capacity * load))
        left, rates, memory = urls / spec.blocks, list[float](), 0
        bitmap = _first_bitmap(spec, schedule)
        while True:
            count = min(left, bitmap.capacity)
            rates.append(predicted_error_rate(count, bitmap.bits, len(spec.seeds)))
            memory, left = memory + bitmap.memory * spec.blocks, left - count
            if left <= 0:
                break
            bitmap = spec.next_bitmap(schedule, bitmap)
        yield {
            "urls": urls,
            "memory": memory,
            "bits_per_url": memory * 8 / urls,
            "error_rate": any_of(rates * schedule.generations),
        }
