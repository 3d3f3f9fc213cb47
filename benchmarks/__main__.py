"""``python -m benchmarks``: run all benchmarks, print their tables, write docs/performance.md."""

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks import growth, latency, lockstep, memory, remember, rings, rotation
from benchmarks.report import Table, command, console, machine, met, packages

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

INTRODUCTION = """\
# Performance

scrapy-bloom beside the Redis dupefilters people use, all built as scrapy-redis's scheduler builds
them; what it costs to lose no page in a crash; and what rotation and growth cost; on real servers.
`make bench` makes this page anew; `make bench-full` too, with the largest filters."""

#: Tables, and in words how they compare with the target, "" if there is none.
Outcome = tuple[list[Table], str]


def benchmarks(options: argparse.Namespace) -> dict[str, Callable[[], Outcome]]:
    """Return all benchmarks by name, in the order of the page."""
    quick, full = options.quick, options.full

    def run_latency() -> Outcome:
        table, results = latency.run(quick=quick)
        return [table], latency_verdict(results)

    return {
        "latency": run_latency,
        "remember": lambda: remember.run(quick=quick),
        "rings": lambda: rings.run(quick=quick, full=full),
        "rotation": lambda: rotation.run(quick=quick),
        "growth": lambda: growth.run(quick=quick, full=full),
        "memory": lambda: ([memory.run(quick=quick)], ""),
        "lockstep": lambda: ([lockstep.run(quick=quick)], ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="fewer calls, less exact")
    extent.add_argument("--full", action="store_true", help="the largest filters (20 minutes)")
    parser.add_argument("--output", type=Path, default=PAGE, help="the markdown page to write")
    parser.add_argument("--only", metavar="NAME", help="run one benchmark, and write no page")
    options = parser.parse_args()
    known = benchmarks(options)
    if options.only not in (None, *known):
        parser.error(f"--only takes one of {', '.join(known)}")
    names = [options.only] if options.only else list(known)
    outcomes = [known[name]() for name in names]
    tables = [table for listed, _ in outcomes for table in listed]
    sentences = [sentence for _, sentence in outcomes if sentence]
    for table in tables:
        console.print(table.to_rich())
    for sentence in sentences:
        console.print(sentence, markup=False)
    if not options.only:
        options.output.write_text(page(tables, sentences), encoding="utf-8")


def latency_verdict(results: list[latency.Result]) -> str:
    """Return in a few words how the latency compares with its target."""
    target = f"A new URL takes at most {latency.TARGET} PINGs of the same client (medians)"
    sentences = [f"{target}. The worst here:"]
    for same_core, where in ((False, "two cores"), (True, "one core")):
        whole = max(r.whole for r in results if r.way.same_core is same_core)
        bare = max(r.bare for r in results if r.way.same_core is same_core)
        sentences.append(
            f"with client and server on {where}, {whole:.2f} ({bare:.2f} without the fingerprint), "
            f"{met(whole <= latency.TARGET)}{'.' if same_core else ';'}"
        )
    return " ".join(sentences)


def page(tables: list[Table], sentences: list[str]) -> str:
    """Return the markdown page."""
    facts = "\n".join(
        [f"- Machine: {machine()}", f"- Packages: {packages()}", f"- Command: `{command()}`"]
    )
    targets = "\n".join(["Targets:", "", *(f"- {sentence}" for sentence in sentences)])
    sections = [INTRODUCTION, facts, targets, *(table.to_markdown() for table in tables)]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    main()
