"""The pages that the benchmarks write: a short one and its appendix."""

import sys
from dataclasses import replace
from pathlib import Path

from support.paths import ROOT

sys.path.insert(0, str(ROOT))
from benchmarks.page import APPENDIX, PAGE, Kept, Results, write
from benchmarks.report import Outcome, Table, Target

MET = Target.at_most("Bits per URL", 30, 26)
MISSED = Target.at_most("PINGs", 1.6, 2.5)


def outcome(*targets: Target, plot: Path | None = None) -> Outcome:
    table = Table("Bits", ("", "bits"), [("ours", "26"), ("theirs", "670")])
    rows = [[target.what, target.here, "670 theirs", target.judged] for target in targets]
    return Outcome([table], list(targets), "It is small.", rows, plot)


def pages(directory: Path, *results: Kept) -> tuple[str, str]:
    write(directory, results)
    return (directory / PAGE).read_text("utf-8"), (directory / APPENDIX).read_text("utf-8")


def test_the_short_page_has_sentences_a_table_and_pictures(tmp_path: Path) -> None:
    crawl = Kept.of("crawl", outcome(MET, plot=tmp_path / "crawl.svg"), 1.5)
    page, _ = pages(tmp_path, crawl, replace(Kept.of("size", outcome(MISSED), 2), headline=""))
    assert page.count("It is small.") == 1
    assert "| Bits per URL | 26.00 | 670 theirs | at most 30: met |" in page
    assert "| PINGs | 2.50 | 670 theirs | at most 1.6: **missed** |" in page
    assert "1 are met and 1 missed" in page
    assert "![Bits](crawl.svg)" in page
    assert "| ours |" not in page


def test_results_are_kept_between_runs(tmp_path: Path) -> None:
    results, found = Results(tmp_path), Kept.of("size", outcome(MET), 1.5)
    results.keep(found)
    assert results.of(["crawl", "size"]) == [found]
    results.forget("size")
    assert results.of(["crawl", "size"]) == []


def test_results_of_another_machine_are_left_out(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.keep(replace(Kept.of("size", outcome(MET), 1.5), facts="another machine"))
    assert results.of(["size"]) == []
