"""The measured false-positive rate of a full filter agrees with the predicted one.

Seeds and URLs are fixed, so the outcome is the same each time; that it lies in the 99% interval
says something about the hash scheme, the sizing and the scripts together.
"""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from scipy import stats
from scipy.stats import binomtest
from support.cli import unchanged

from scrapy_bloom import BloomFilter, ConfigurationError, Measurement
from scrapy_bloom.bloom.model.sizing import optimal_hashes
from scrapy_bloom.bloom.protocol.info import MAX_PROBES

CAPACITY, RATE = 30_000, 0.02
#: Few and small, where the others are random.
SEEDS = [5, 7, 11, 13, 31, 37, 61]
#: URLs of one generation: its four layers take 200, 400, 800 and 1,600.
GENERATION, GENERATIONS = 2_800, 6


def fixed_seeds(count: int) -> list[int]:
    return random.Random(2026).sample(range(2**32), count)


def count_positives(bloom: BloomFilter, probes: int, confidence: float) -> int:
    """Return how many URLs that are not recorded test as seen: as many as is predicted."""
    predicted = bloom.info().estimated_error_rate
    assert 0.5 * RATE < predicted <= bloom.info().error_bound <= RATE
    positives = sum(bloom.contains(f"https://example.com/other/{i}" for i in range(probes)))
    low, high = stats.binom.interval(confidence, probes, predicted)
    assert low <= positives <= high
    return positives


@pytest.mark.parametrize(
    ("blocks", "seeds"), [(4, fixed_seeds(optimal_hashes(CAPACITY, RATE))), (16, SEEDS)]
)
def test_measured_rate_at_capacity_is_as_predicted(
    client: Redis, blocks: int, seeds: list[int]
) -> None:
    """Of a filter that does not grow: all of the error rate is that of its one layer."""
    size: dict[str, Any] = {"capacity": CAPACITY, "error_rate": RATE, "growth": 0}
    bloom = BloomFilter(client, "rate", blocks=blocks, seeds=seeds, **size)
    bloom.extend(f"https://example.com/page/{i}" for i in range(CAPACITY))
    count_positives(bloom, 60_000, 0.99)


@pytest.mark.parametrize(
    "order", [pytest.param("write-newest", marks=pytest.mark.slow), "write-all"]
)
def test_six_generations_that_have_grown_keep_within_one_error_rate(
    client: Redis, order: str
) -> None:
    """The error budget: what is measured over everything tested is at most what was asked for."""
    options: dict[str, Any] = {"capacity": 200, "error_rate": RATE, "seeds": fixed_seeds(10)}
    options |= {"window": f"{GENERATIONS} runs", "period": "1 run", "ring": order, "blocks": 1}
    for run in range(GENERATIONS):
        bloom = BloomFilter(client, "budget", run=f"run {run}", **options)
        bloom.extend(f"https://example.com/run/{run}/page/{i}" for i in range(GENERATION))
    generations = bloom.info().generations
    assert len(generations) == GENERATIONS
    assert all(generation.layers >= 4 for generation in generations)
    assert count_positives(bloom, 25_000, 0.999) <= RATE * 25_000


# -- the interval --


@given(st.integers(0, 10**5), st.integers(0, 10**6))
def test_the_interval_is_scipy_s(seen: int, others: int) -> None:
    measured = Measurement(seen + others + 1, seen)
    expected = binomtest(measured.seen, measured.probes).proportion_ci(0.95, method="wilson")
    assert measured.low == pytest.approx(expected.low, rel=1e-6, abs=1e-12)
    assert measured.high == pytest.approx(expected.high, rel=1e-6, abs=1e-12)


# -- a filter --


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"counting": True},
        {"window": "3 runs", "period": "1 run", "run": "0"},
        {"window": "3 runs", "period": "1 run", "run": "0", "ring": "write-all"},
    ],
    ids=["bits", "counters", "generations", "write-all"],
)
def test_what_is_measured_is_the_rate_of_the_filter(client: Redis, options: dict[str, Any]) -> None:
    """Filled to its capacity it has the rate that it was made for, and that ``info`` estimates."""
    size: dict[str, Any] = {"capacity": 2_000, "error_rate": 0.05, "growth": 0}
    bloom = BloomFilter(client, "shop", seeds=[1, 2, 3, 4], **size, **options)
    bloom.extend(f"{number}" for number in range(2_000))
    with unchanged(client):
        measured = bloom.measure(40_000)
    # Six standard deviations of the measurement, and the spread of the bits that are set.
    expected = bloom.info().estimated_error_rate
    spread = 6 * math.sqrt(expected * (1 - expected) / 40_000)
    assert expected > 0.005
    assert abs(measured.rate - expected) < spread + 0.15 * expected


def test_an_empty_filter_has_seen_nothing(client: Redis) -> None:
    measured = BloomFilter(client, "shop").measure(10_000)
    assert (measured.probes, measured.seen, measured.low) == (10_000, 0, 0)
    assert measured.high == pytest.approx(3.84e-4, rel=1e-3)


@pytest.mark.parametrize("probes", [0, -1, 1.5, "many", None, True, MAX_PROBES + 1])
def test_probes_are_a_whole_number(client: Redis, probes: object) -> None:
    with pytest.raises(ConfigurationError, match="probes is how many random items to test"):
        BloomFilter(client, "shop").measure(probes)  # type: ignore[arg-type]
    assert client.dbsize() == 0
