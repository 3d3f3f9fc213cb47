"""``scrapy bloom metrics`` and ``watch``: what filters hold, for Prometheus and again and again.

They change nothing on the server.
"""

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from scrapy_bloom.bloom.errors import StorageError, in_words
from scrapy_bloom.bloom.validators import seconds, whole_number
from scrapy_bloom.cli.output import Column, Document, minute, table
from scrapy_bloom.cli.server import Stored
from scrapy_bloom.cli.session import FILTER, CommandSession, ExitCode, option, subcommand
from scrapy_bloom.crawl.stats import Kind, family, registry
from scrapy_bloom.settings import WORDS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

try:
    import rich.live
    import rich.text
except ImportError:  # pip install "scrapy-bloom[cli]"
    rich = None  # type: ignore[assignment]

#: The gauges of filters, by their names without ``scrapy_bloom_filter_``, and what each shows.
GAUGES = {
    "exists": "whether there is a filter: 1, or 0",
    "capacity_urls": "URLs a generation takes before it grows",
    "urls": "URLs remembered",
    "fill_ratio": "URLs in the active generation as a share of those that fit in",
    "estimated_error_rate": "predicted chance that a new URL counts as seen",
    "error_rate_limit": "error rate that was asked for, at most",
    "generations": "live generations",
    "layers": "layers of all generations",
    "memory_bytes": "bytes of the bitmaps",
    "lost_blocks": "parts that were evicted or deleted",
    "next_rotation_timestamp_seconds": (
        "Unix time at which the active generation closes; none if that is never, or with a run"
    ),
    "claims": "URLs claimed and not settled yet, failed ones included",
    "failed_claims": "URLs that failed and are left alone for a while; only with --count-failed",
    "workers": "crawlers that are alive and have the filter open",
}
#: Values of gauges, by their names; None for what a filter does not have.
Values = Mapping[str, float | None]
#: Looks of ``watch``, if the options give no number: more than anybody waits for.
ENDLESS = 10**9


# -- metrics --


@subcommand(
    "print what filters hold in Prometheus's text format; changes nothing",
    *FILTER,
    option(
        "--count-failed",
        action="store_true",
        help="count the claims of pages that failed, too; this reads all claims",
    ),
)
def metrics(session: CommandSession) -> ExitCode:
    """Print the metrics of the chosen filters.

    Raises:
        StorageError: the server did not answer, or a filter cannot be read.
    """
    found = list[tuple[dict[str, str], Values]]()
    with session.connect() as server:
        for window, stored in session.chosen(server):
            values = _values(stored, counts_failed=session.opts.count_failed)
            found.append(({"key": server.key(window), "window": window}, values))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # the format's, whatever the terminal's is
    gauges = families(found)
    session.report({"metrics": [*map(_to_json, gauges)]}, text(gauges)[:-1])
    return ExitCode.of(any(values["exists"] for _, values in found))


def families(found: Sequence[tuple[Mapping[str, str], Values]]) -> list["Metric"]:
    """Return the metrics of filters, by their labels and values.

    Raises:
        ConfigurationError: prometheus_client is not installed.
    """

    def samples(name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        for labels, values in found:
            value = values.get(name)
            if value is not None:
                yield labels, value

    return [
        family(f"filter_{name}", Kind.GAUGE, meaning, samples(name))
        for name, meaning in GAUGES.items()
    ]


def text(metrics: Sequence["Metric"]) -> str:
    """Return metrics in Prometheus's text format."""
    from prometheus_client import generate_latest  # noqa: PLC0415 - comes with an extra

    return generate_latest(registry(lambda: metrics)).decode()


def _values(stored: Stored | None, *, counts_failed: bool = False) -> Values:
    """Return the values of a filter's gauges."""
    if stored is None:
        return {"exists": 0}
    info, active, failed = stored.info, stored.info.generations[0], None
    if counts_failed:
        failed = sum(one.claim.failed for one in stored.claims())
    return {
        "exists": 1,
        "capacity_urls": info.capacity,
        "urls": info.count,
        "fill_ratio": active.fill_ratio,
        "estimated_error_rate": info.estimated_error_rate,
        "error_rate_limit": info.error_rate,
        "generations": len(info.generations),
        "layers": sum(generation.layers for generation in info.generations),
        "memory_bytes": info.memory,
        "lost_blocks": info.lost_blocks,
        "next_rotation_timestamp_seconds": active.closes or None,
        "claims": info.claims,
        "failed_claims": failed,
        "workers": stored.alive,
    }


def _to_json(metric: "Metric") -> Document:
    return {
        "name": metric.name,
        "type": metric.type,
        "help": metric.documentation,
        "samples": [{"labels": sample.labels, "value": sample.value} for sample in metric.samples],
    }


# -- watch --


@subcommand(
    "show what filters hold, again and again until Ctrl-C; changes nothing",
    *FILTER,
    option("--every", metavar="SECONDS", default="2", help="time between readings, 2 by default"),
    option("--times", metavar="N", default=str(ENDLESS), help="end after so many readings"),
)
def watch(session: CommandSession) -> None:
    """Show the chosen filters until Ctrl-C.

    Raises:
        ConfigurationError: an option or a setting is wrong.
    """
    every = seconds("--every", session.opts.every, 0.1, 3_600)
    times = whole_number("--times", session.opts.times, 1, ENDLESS, "readings before it ends")
    try:
        with _screen(is_json=session.opts.json) as show:
            for number, look in enumerate(islice(_looks(session), times), start=1):
                show(look)
                if number < times:
                    time.sleep(every)
    except KeyboardInterrupt:
        pass  # the usual end


def _looks(session: CommandSession) -> Iterator[Document]:
    """Yield what there is, without end. After a failure, the next look connects again."""
    before: dict[str, tuple[float, int]] = {}
    while True:
        try:
            with session.connect() as server:
                while True:
                    filters = [
                        _watched(window, server.key(window), _values(stored))
                        for window, stored in session.chosen(server)
                    ]
                    _rate(filters, time.monotonic(), before)
                    yield {"error": None, "filters": filters}
        except StorageError as error:
            yield {"error": in_words(str(error), WORDS), "filters": []}


def _watched(window: str, key: str, values: Values) -> Document:
    """Return what is shown of a filter by its gauges, without its rate."""
    return {
        "name": window,
        "exists": bool(values["exists"]),
        "urls": values.get("urls"),
        "urls_a_second": None,
        "fill_ratio": values.get("fill_ratio", 0.0),
        "claims": values.get("claims", 0),
        "workers": values.get("workers", 0),
        "closes": values.get("next_rotation_timestamp_seconds"),
        "key": key,
    }


def _rate(filters: Sequence[Document], at: float, before: dict[str, tuple[float, int]]) -> None:
    """Note how many URLs a second have come to filters since the last look at them.

    Args:
        filters: as they are now.
        at: seconds of a clock that never goes back.
        before: of each filter that was there at the last look, that time and its URLs; changed.
    """
    for one in filters:
        key, urls = one["key"], one["urls"]
        then, past = before.pop(key, (at, 0))
        if urls is not None:
            one["urls_a_second"] = (urls - past) / (at - then) if at > then else None
            before[key] = at, urls


@contextmanager
def _screen(*, is_json: bool) -> Iterator[Callable[[Document], None]]:
    """Yield what shows a look: on a terminal in one place, else below the last one."""
    if is_json:
        yield lambda look: print(json.dumps(look), flush=True)
    elif rich is None or not sys.stdout.isatty():
        yield lambda look: print(_text(look), end="\n\n", flush=True)
    else:
        with rich.live.Live(auto_refresh=False) as live:
            yield lambda look: live.update(rich.text.Text(_text(look)), refresh=True)


def _text(look: Document) -> str:
    time_of_day = time.strftime("%H:%M:%S")
    if look["error"]:
        return f"{time_of_day}  {look['error']}"
    return "\n".join([time_of_day, *table(WATCHED, look["filters"])])


def _if_there(text: Callable[[Document], str], other: str = "-") -> Callable[[Document], str]:
    """Return a text of filters that are there."""
    return lambda row: text(row) if row["exists"] else other


WATCHED: Sequence[Column[Document]] = (
    Column("URLs", _if_there(lambda row: f"{row['urls']:,}", "no such filter")),
    Column(
        "new a second",
        lambda row: "-" if row["urls_a_second"] is None else f"{row['urls_a_second']:+,.0f}",
    ),
    Column("fill", _if_there(lambda row: f"{row['fill_ratio']:.1%}")),
    Column("claimed", _if_there(lambda row: f"{row['claims']:,}")),
    Column("workers", _if_there(lambda row: f"{row['workers']:,}")),
    Column("rotates (UTC)", lambda row: minute(row["closes"] or 0) or "-"),
    Column("key", lambda row: row["key"], is_left=True),
)
