"""The comparison of two runs of another project's tests."""

import json

from tools.upstream.outcomes import (
    FAILED,
    PASSED,
    SKIPPED,
    Known,
    Outcome,
    compare,
    merge,
    read,
)
from tools.upstream.projects import SCRAPY

OK, BAD = Outcome(PASSED), Outcome(FAILED, "AssertionError")


def line(test: str, outcome: str, why: str = "") -> str:
    return json.dumps({"test": test, "outcome": outcome, "why": why})


def test_worst_report_of_a_test_is_its_outcome() -> None:
    lines = [
        line("a", "passed"),
        line("b", "passed"),
        line("b", "failed", "at teardown"),
        line("c", "skipped"),
    ]
    first = {"a": OK, "b": Outcome(FAILED, "at teardown"), "c": Outcome(SKIPPED)}
    assert read(lines) == first
    assert merge(first, {"b": OK}) == first | {"b": Outcome(PASSED, "at teardown")}


def test_comparison_explains_what_is_known() -> None:
    by_design = Known(SCRAPY, ("tests/test_stats.py::*",), "there are more stats")
    mended = Known(SCRAPY, ("tests/test_old.py::*",), "a defect that is mended")
    of_other_version = Known(SCRAPY, ("tests/test_new.py::*",), "this version has no such test")
    stats, old, broken, shaky, fails = (
        "tests/test_stats.py::test_all[a-b]",
        "tests/test_old.py::test_one",
        "tests/test_a.py::test_broken",
        "tests/test_a.py::test_shaky",
        "tests/test_a.py::test_fails",
    )
    found = compare(
        as_is={stats: OK, broken: OK, fails: BAD},
        ours={stats: BAD, old: OK, broken: BAD, shaky: Outcome(PASSED, "slow"), fails: BAD},
        known=[by_design, mended, of_other_version],
        filters=3,
    )
    assert (found.passed, found.neither) == (2, 1)
    assert found.explained == {by_design: {stats: BAD}}
    assert found.unknown == {broken: BAD}
    assert found.gone == [mended]
    assert found.unstable == [shaky]
    assert not found.is_as_known
    assert compare({"a": OK}, {"a": BAD}, [Known(SCRAPY, ("a",), "why")], filters=1).is_as_known
