"""The comparison of two runs of another project's tests."""

import json
from pathlib import Path

import pytest

from tools.upstream import plugin
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
from tools.upstream.projects import SCRAPY, SCRAPY_REDIS, Suite
from tools.upstream.report import lines

OK, BAD = Outcome(PASSED), Outcome(FAILED, "AssertionError")


def line(test: str, outcome: str, why: str = "") -> str:
    return json.dumps({"test": test, "outcome": outcome, "why": why})


def test_worst_report_of_a_test_is_its_outcome() -> None:
    lines = [
        line("a", "passed"),
        line("b", "passed"),
        line("b", "failed", "at teardown"),
        line("c", "failed", "first"),
        line("c", "passed"),
        line("d", "rerun"),
        line("d", "passed"),
        line("e", "skipped"),
    ]
    assert read(lines) == {
        "a": OK,
        "b": Outcome(FAILED, "at teardown"),
        "c": Outcome(FAILED, "first"),
        "d": OK,
        "e": Outcome(SKIPPED),
    }


def test_test_that_passes_when_repeated_has_passed() -> None:
    first = {"a": OK, "b": BAD, "c": BAD}
    assert merge(first, {"b": OK, "c": BAD}) == {
        "a": OK,
        "b": Outcome(PASSED, "AssertionError"),
        "c": BAD,
    }


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


def test_runs_are_as_known_if_only_known_differences_occur() -> None:
    by_design = Known(SCRAPY, ("a",), "why")
    assert compare({"a": OK}, {"a": BAD, "b": OK}, [by_design], filters=1).is_as_known
    assert not compare({"a": OK}, {"a": BAD}, [], filters=1).is_as_known
    assert not compare({}, {"a": OK}, [by_design], filters=1).is_as_known


def test_run_in_which_no_test_opened_a_filter_shows_nothing() -> None:
    found = compare({}, {"a": OK}, [], filters=0)
    assert not found.is_as_known
    assert "NO FILTER WAS MADE" in lines(found)[0]


def test_only_the_star_of_a_pattern_is_special() -> None:
    known = Known(SCRAPY, ("tests/a.py::test[x-*]",), "why")
    assert known.covers("tests/a.py::test[x-1]")
    assert not known.covers("tests/a.py::test[y-1]")
    assert not known.covers("tests/abpy::test[x-1]")
    assert not known.covers("tests/a.py::test[x-1]::more")


def test_processes_that_a_test_starts_use_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    test = "tests/test_a.py::test_b[x y]"
    monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{test} (call)")
    assert plugin.current_key() == plugin.key_of(test)
    assert plugin.current_key() != plugin.key_of("tests/test_a.py::test_c")


def test_test_is_chosen_by_its_id_its_class_or_its_module() -> None:
    test = "tests/a.py::TestA::test[x::y]"
    for chosen in (test, "tests/a.py::TestA::test", "tests/a.py::TestA", "tests/a.py"):
        assert plugin.is_chosen(test, {chosen})
    for other in ("tests/a.py::TestA::test[x", "tests/a.py::TestB", "tests"):
        assert not plugin.is_chosen(test, {other})


def test_requirements_of_the_tests_are_the_projects_own(tmp_path: Path) -> None:
    (tmp_path / "tox.ini").write_text(
        "[test-requirements]\ndeps =\n    pytest != 8.2.*  # a bug\n    attrs\n"
    )
    (tmp_path / "requirements-tests.txt").write_text("# all\nflake8\npytest>=6.0,<7\nmock\n")
    tools = ["pytest-timeout", "pytest-xdist"]
    scrapy = Suite(SCRAPY, "2.13.0", pins=("twisted<25.6",))
    assert scrapy.requirements(tmp_path) == ["pytest != 8.2.*", "attrs", *tools, "twisted<25.6"]
    assert Suite(SCRAPY_REDIS, "0.9.1").requirements(tmp_path) == ["pytest>=6.0,<7", "mock", *tools]


def test_default_settings_of_scrapy_get_the_dupefilter(tmp_path: Path) -> None:
    settings = tmp_path / "scrapy/settings/default_settings.py"
    settings.parent.mkdir(parents=True)
    settings.write_text('DUPEFILTER_CLASS = "scrapy.dupefilters.RFPDupeFilter"\n')
    Suite(SCRAPY, "2.19.0", remember="scheduled").put_in(tmp_path, "redis://localhost/1")
    text = settings.read_text()
    assert text.endswith("\nBLOOM_KEY = current_key()\n")
    assert "DUPEFILTER_CLASS = 'scrapy_bloom.BloomDupeFilter'\n" in text
    assert "BLOOM_REDIS_URL = 'redis://localhost/1'\nBLOOM_REMEMBER = 'scheduled'\n" in text


def test_test_of_the_scheduler_of_scrapy_redis_gets_the_dupefilter(tmp_path: Path) -> None:
    path = tmp_path / "tests/test_scrapy_redis.py"
    path.parent.mkdir()
    path.write_text(
        'settings = {\n    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",\n}\n'
    )
    suite = Suite(SCRAPY_REDIS, "0.9.1")
    suite.put_in(tmp_path, "redis://localhost/1")
    text = path.read_text()
    assert "'DUPEFILTER_CLASS': 'scrapy_bloom.BloomDupeFilter'," in text
    assert "'BLOOM_REDIS_URL': 'redis://localhost/1'," in text
    with pytest.raises(SystemExit, match="does not set"):
        suite.put_in(tmp_path, "redis://localhost/1")
