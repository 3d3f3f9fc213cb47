"""``python -m benchmarks``: run all benchmarks, print their tables, write docs/performance.md."""

import argparse
from pathlib import Path

from benchmarks import latency, lockstep, memory
from benchmarks.report import Table, command, console, machine, packages

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

INTRODUCTION = """\
# Performance

scrapy-bloom beside the Redis dupefilters people use, all built as scrapy-redis's scheduler builds
them, on real servers. `make bench` makes this page anew."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer calls, less exact")
    parser.add_argument("--output", type=Path, default=PAGE, help="the markdown page to write")
    options = parser.parse_args()
    timed, worst = latency.run(quick=options.quick)
    tables = [timed, memory.run(quick=options.quick), lockstep.run(quick=options.quick)]
    sentence = verdict(worst)
    for table in tables:
        console.print(table.to_rich())
    console.print(sentence)
    options.output.write_text(page(tables, sentence), encoding="utf-8")


def verdict(worst: float) -> str:
    """Return in a sentence whether the latency target is met."""
    met = "met" if worst <= latency.TARGET else "missed"
    return (
        f"Target: the median of a new URL, fingerprint included, is at most {latency.TARGET} PINGs "
        f"of the same client. The worst here is {worst:.2f}: {met}."
    )


def page(tables: list[Table], sentence: str) -> str:
    """Return the markdown page."""
    facts = "\n".join(
        [f"- Machine: {machine()}", f"- Packages: {packages()}", f"- Command: `{command()}`"]
    )
    sections = [INTRODUCTION, facts, sentence, *(table.to_markdown() for table in tables)]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    main()
