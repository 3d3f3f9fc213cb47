"""Compares the outcomes of two runs of a test suite, and differences with the known ones."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

PASSED, SKIPPED, FAILED, MISSING = "passed", "skipped", "failed", "missing"
#: Of the steps of a test, the worst outcome counts.
ORDER = (PASSED, SKIPPED, FAILED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended: ``passed``, ``skipped`` (or failed as expected) or ``failed``.

    ``why`` is the text of the failure, also of a test that has failed and passed when repeated.
    """

    outcome: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """Differences that are by design, for one reason.

    Args:
        project: ``scrapy`` or ``scrapy-redis``.
        tests: ids of tests, in which ``*`` stands for any text.
        why: the explanation, one sentence.
        remember: the value of ``BLOOM_REMEMBER`` with which they occur; "" for each.
        reactor: the kind of reactor with which they occur; "" for each.
    """

    project: str
    tests: tuple[str, ...]
    why: str
    remember: str = ""
    reactor: str = ""

    def covers(self, test: str) -> bool:
        """Whether it explains a difference of the test."""
        patterns = (".*".join(map(re.escape, name.split("*"))) for name in self.tests)
        return any(re.fullmatch(pattern, test) for pattern in patterns)

    def is_about(self, project: str, remember: str, reactor: str) -> bool:
        """Whether they occur in such a run."""
        options = (self.remember in ("", remember), self.reactor in ("", reactor))
        return self.project == project and all(options)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs have in common, and where they differ.

    Attributes:
        passed: number of tests that passed with scrapy-bloom.
        neither: number of tests that passed in neither run.
        explained: reasons -> the tests that differ for it, and their outcomes with scrapy-bloom.
        unknown: tests that differ without an explanation, and their outcomes.
        gone: reasons for which no test differs, although there are such tests.
        unstable: tests that failed with scrapy-bloom, and passed when they were run again.
        filters: number of filters created: one for each test that crawls, each time that it runs.
    """

    passed: int
    neither: int
    explained: Mapping[Known, Mapping[str, Outcome]] = field(default_factory=dict)
    unknown: Mapping[str, Outcome] = field(default_factory=dict)
    gone: Sequence[Known] = ()
    unstable: Sequence[str] = ()
    filters: int = 0

    @property
    def is_as_known(self) -> bool:
        """Whether the filter was used, and there are no differences but the known ones."""
        return not self.unknown and not self.gone and self.filters > 0


def read(lines: Iterable[str]) -> dict[str, Outcome]:
    """Return the outcomes of tests from the plugin's lines; the worst of a test counts."""
    outcomes: dict[str, Outcome] = {}
    for line in lines:
        report = json.loads(line)
        if report["outcome"] not in ORDER:
            continue  # "rerun": another report follows
        before = outcomes.get(report["test"], Outcome(PASSED))
        if ORDER.index(report["outcome"]) >= ORDER.index(before.outcome):
            outcomes[report["test"]] = Outcome(report["outcome"], report["why"])
    return outcomes


def differences(as_is: Mapping[str, Outcome], ours: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Return the tests that pass as they are and do not with scrapy-bloom."""
    return {
        test: ours.get(test, Outcome(MISSING))
        for test, outcome in as_is.items()
        if outcome.outcome == PASSED and ours.get(test, Outcome(MISSING)).outcome != PASSED
    }


def merge(first: Mapping[str, Outcome], again: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Return the outcomes of a run, after the tests that failed were run again."""
    passed = {test for test, outcome in again.items() if outcome.outcome == PASSED}
    return {
        test: Outcome(PASSED, outcome.why) if test in passed else outcome
        for test, outcome in first.items()
    }


def compare(
    as_is: Mapping[str, Outcome],
    ours: Mapping[str, Outcome],
    known: Sequence[Known],
    filters: int,
) -> Comparison:
    """Compare a suite's outcomes as it is with those with scrapy-bloom.

    Args:
        as_is: tests and outcomes without scrapy-bloom, at least of those that do not pass with it.
        ours: all tests, and outcomes with it.
        known: the differences that are expected in this run.
        filters: number of filters that the tests created.
    """
    found = differences(as_is, ours)
    explained: dict[Known, dict[str, Outcome]] = {}
    unknown: dict[str, Outcome] = {}
    for test, outcome in found.items():
        why = next((entry for entry in known if entry.covers(test)), None)
        (unknown if why is None else explained.setdefault(why, {}))[test] = outcome
    passed = [test for test, outcome in ours.items() if outcome.outcome == PASSED]
    return Comparison(
        passed=len(passed),
        neither=len(ours.keys() - passed - found.keys()),
        explained=explained,
        unknown=unknown,
        gone=[e for e in known if e not in explained and any(map(e.covers, passed))],
        unstable=[test for test in passed if ours[test].why],
        filters=filters,
    )
