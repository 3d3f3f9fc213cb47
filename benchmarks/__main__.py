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
    timed, results = latency.run(quick=options.quick)
    tables = [timed, memory.run(quick=options.quick), lockstep.run(quick=options.quick)]
    sentence = verdict(results)
    for table in tables:
        console.print(table.to_rich())
    console.print(sentence, markup=False)
    options.output.write_text(page(tables, sentence), encoding="utf-8")


def verdict(results: list[latency.Result]) -> str:
    """Return in a few words how the latency compares with its target."""
    target = f"a new URL takes at most {latency.TARGET} PINGs of the same client (medians)"
    sentences = [f"Target: {target}. The worst here:"]
    for same_core, where in ((False, "two cores"), (True, "one core")):
        whole = max(r.whole for r in results if r.way.same_core is same_core)
        bare = max(r.bare for r in results if r.way.same_core is same_core)
        met = "met" if whole <= latency.TARGET else "missed"
        sentences.append(
            f"with client and server on {where}, {whole:.2f} ({bare:.2f} without the fingerprint), "
            f"{met}{'.' if same_core else ';'}"
        )
    return " ".join(sentences)


def page(tables: list[Table], sentence: str) -> str:
    """Return the markdown page."""
    facts = "\n".join(
        [f"- Machine: {machine()}", f"- Packages: {packages()}", f"- Command: `{command()}`"]
    )
    sections = [INTRODUCTION, facts, sentence, *(table.to_markdown() for table in tables)]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    main()
