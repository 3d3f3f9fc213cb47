"""``scrapy bloom report``: writes one page about filters, to look at or to send.

It shows the URLs of each generation, its fill and error rate, and the pages that failed. You can
send the file to others, because it needs nothing else. An existing file is overwritten.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from scrapy.settings import Settings

from scrapy_bloom.cli import output
from scrapy_bloom.cli.info import window_info, window_rows
from scrapy_bloom.cli.output import minute, plural, rate, size
from scrapy_bloom.cli.pending import list_pending
from scrapy_bloom.cli.project import filters
from scrapy_bloom.cli.stored import StoredFilter

HELP = "write an HTML page about filters"
EXAMPLES = """\
scrapy bloom report report.html
scrapy bloom report report.html --all"""
#: Failed pages of a spider that the page shows.
SHOWN = 50
#: Columns of the tables.
GENERATIONS = ("generation", "urls", "", "fill", "error_rate", "forgotten")
FAILED = ("next_try", "attempts", "reason", "url")
_PAGE = Template(resources.files("scrapy_bloom.cli").joinpath("report.html").read_text("utf-8"))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("file", metavar="FILE", help="write the page to this file")
    parser.add_argument("--all", action="store_true", help="show all filters on the server")


def run(settings: Settings, opts: argparse.Namespace) -> bool:
    """Write the page; return whether there is a filter."""
    shown = [(str(one), "".join(_section(one))) for one in filters(settings, opts, every=opts.all)]
    if not shown:
        return False
    page = _PAGE.substitute(
        title=escape(", ".join(name for name, _ in shown)),
        time=minute(int(time.time())),
        sections="".join(f"<section>{text}</section>" for _, text in shown),
    )
    # Keys may have bytes that aren't text.
    Path(opts.file).write_bytes(page.encode(errors="backslashreplace"))
    text = f"{opts.file}: {plural(len(shown), 'filter')}"
    output.report(opts, {"file": opts.file, "filters": len(shown)}, [], text)
    return True


def _section(stored: StoredFilter) -> Iterator[str]:
    """Yield the page's section on a filter."""
    windows = {name: window_info(stored, name) for name in stored.windows}
    lists = [list_pending(stored, spider, failed=True, limit=SHOWN) for spider in stored.spiders]
    rows = [row for found, _, _ in lists for row in found]
    counts = sum((one[1] for one in lists), Counter[bool]())
    failed = counts[True]
    yield f"<h2>{escape(stored.bloom.key)}</h2><p>{escape(stored.bloom.label)}</p><dl>"
    facts = {
        "URLs": f"{sum(one.count for one in windows.values()):,}",
        "Memory": size(sum(one.memory for one in windows.values())),
        "Pending": f"{counts.total():,}",
        "Failed": f"{failed:,}",
    }
    for name, value in facts.items():
        kind = "bad" if name == "Failed" and failed else ""
        yield f'<div><dt>{name}</dt><dd class="{kind}">{value}</dd></div>'
    yield "</dl>"
    most = max([1, *(part.count for one in windows.values() for part in one.generations)])
    for name, window in windows.items():
        yield f"<h3>Window {escape(name)}: {escape(str(window.schedule))}</h3>"
        yield f"<p>Error rate {escape(rate(window.error_rate))}, {plural(window.count, 'URL')}</p>"
        generations = [row for row in window_rows(stored, name) if row["generation"] != "all"]
        yield from _table(GENERATIONS, [{**row, "": row["urls"] / most} for row in generations])
    shown = f" pages, {len(rows):,} of {failed:,}" if failed > len(rows) else ""
    yield f"<h3>Failed{shown}</h3>" if rows else ""
    yield from _table(FAILED, rows)


def _table(names: Sequence[str], rows: Sequence[output.Row]) -> Iterator[str]:
    """Yield a table; the share without a name becomes a bar."""
    if not rows:
        return
    heads = {name: name.replace("_", " ").capitalize().replace("Url", "URL") for name in names}
    cells = "".join(f'<th class="{n or "chart"}">{head}</th>' for n, head in heads.items())
    yield f"<table><thead><tr>{cells}</tr></thead><tbody>"
    for row in rows:
        yield "<tr>"
        for name, head in heads.items():
            bar = f'<svg><rect width="{row[name]:.2%}" height="100%"/></svg>' if not name else ""
            text = bar or escape(output.cell(row, name))
            yield f'<td class="{name or "chart"}" data-label="{head}">{text}</td>'
        yield "</tr>"
    yield "</tbody></table>"
