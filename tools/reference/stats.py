"""docs/reference/stats.md."""

from scrapy_bloom.crawl.stats import STATS, Kind
from tools.reference.markdown import code, document, table

INTRODUCTION = """\
Stats of a crawl, in Scrapy's stats collector. Those of another window are `bloom/<name>/...`,
as `bloom/1-day/seen`; the window `run` has `bloom/run/new` and `bloom/run/seen`. Requests
that are filtered also count in Scrapy's own `dupefilter/filtered`."""
ON_GAUGES = """\
They are set when the crawl begins and when it ends; `bloom/rotations` with each rotation, round
trips also when the spider is idle."""
HEADINGS = {
    Kind.COUNTER: ("Counters", "They grow during the crawl."),
    Kind.GAUGE: ("Gauges", ON_GAUGES),
}


def page() -> str:
    """Return the page."""
    blocks = [INTRODUCTION]
    for kind, (heading, text) in HEADINGS.items():
        rows = [(code(f"bloom/{n}"), s.meaning) for n, s in STATS.items() if s.kind is kind]
        blocks += [f"## {heading}", text, table(("stat", "what it is"), rows)]
    return document("Stats", "scrapy_bloom/crawl/stats.py", *blocks)
