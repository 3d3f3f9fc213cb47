"""The short form: seconds of a soak run. `make soak` runs as long as there is time."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.crawl.local_state import LocalState
from soak.run import CURVES, SAMPLES, report, soak
from soak.sizes import container_sizes
from soak.stand import COLUMNS, End, Options
from soak.verdict import MEASURES, Measure, failures, growth, read_samples
from soak.visits import Visits, gaps, read_visits

STEADY = {"files", "threads"}
GOOD = End([0, 0], 3, 0, [], [1.0], 100, 1, 10)


def options(directory: Path) -> Options:
    small = Options(directory, seconds=6, requests=3_000, pages=300, period=4, fault_every=1.2)
    # A busy machine may do nothing for a long time: what is late is tested without it.
    return replace(small, sample_every=0.5, patience=600)


def test_nothing_is_left_and_no_page_is_hidden(tmp_path: Path) -> None:
    given = options(tmp_path)
    growths, end = soak(given)
    # Of seconds, only what does not depend on the length of the queue is flat.
    assert failures([one for one in growths if one.measure.column in STEADY], end, given) == []
    assert end.faults > 3
    assert end.crawled > given.pages
    samples = read_samples(tmp_path / SAMPLES)
    assert len(samples) > 10
    assert float(samples[-1]["requests"]) > given.pages
    assert samples[-1].keys() == set(COLUMNS)
    svg = (tmp_path / CURVES).read_text()
    assert svg.startswith("<?xml")
    assert len([*report(given, growths, end)]) == 3 + len(MEASURES)


def samples(name: str, values: Sequence[float], requests: int) -> list[dict[str, str]]:
    step = requests / len(values)
    rows = [dict.fromkeys(COLUMNS, "") for _ in values]
    for number, (row, value) in enumerate(zip(rows, values, strict=True)):
        row |= {"requests": str(number * step), name: str(value)}
    return rows


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.column)
def test_slow_growth_below_the_noise_is_found_and_noise_is_none(measure: Measure) -> None:
    noise, per_million = random.Random(1), 2 * measure.per_million
    step = max(measure.per_run / per_million, 1)  # millions of requests for the bound of a run
    values = [100 + noise.uniform(-0.5, 0.5) * measure.per_run for _ in range(700)]
    assert not growth(samples(measure.column, values, 5_000_000), measure).has_grown
    values = [v + number / 700 * 4 * step * per_million for number, v in enumerate(values)]
    found = growth(samples(measure.column, values, int(4e6 * step)), measure)
    assert found.has_grown
    assert found.per_million == pytest.approx(per_million, rel=0.2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exit_codes": [0, -9]}, "crawlers ended with [0, -9]"),
        ({"claims": 2}, "2 claims of crawlers that have ended cleanly"),
        ({"lasting_keys": ["k"]}, "1 keys never expire, such as k"),
        ({"gaps": [1.0, 900.0]}, "1 pages were not crawled for 626 seconds"),
    ],
    ids=["exit codes", "claims", "keys", "hidden"],
)
def test_what_is_left_is_found(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    given = options(tmp_path)
    assert failures([], GOOD, given) == []
    assert failures([], replace(GOOD, **change), given) == [words]


def test_gaps_are_between_visits_and_at_both_ends(tmp_path: Path) -> None:
    visits = Visits(tmp_path / "visits")
    for page in (1, 0, 1):
        visits.crawled(page)
    visits.close()
    found = read_visits(tmp_path / "visits", 3)
    assert [len(moments) for moments in found] == [1, 2, 0]
    assert gaps([[5.0, 4.0], [11.0], []], 1.0, 12.0) == [7.0, 10.0, 11.0]


def test_containers_are_found_wherever_they_are() -> None:
    state = LocalState(0, 60)
    state.take(b"one")
    state.take(b"two")
    found = container_sizes(state)
    assert found["LocalState._taken"] == 2
    assert found["LocalState._reserved"] == 0
    assert container_sizes([partial(print, [state.put])])["LocalState._taken"] == 2
