"""The measured rate of false positives agrees with the predicted one, and is below the bound.

Seeds and URLs are fixed, so the outcome is the same each time. That it lies in the interval says
something about the hash scheme, the sizing and the scripts together.
"""

import random
from typing import Any

import pytest
from redis import Redis
from scipy import stats
from support.clock import MovedServer

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.sizing import optimal_hashes

RATE, DAY = 0.02, 86_400


def fixed_seeds(count: int) -> tuple[int, ...]:
    return tuple(random.Random(2026).sample(range(2**32), count))


def measure(bloom: BloomFilter, probes: int) -> float:
    """Return the share of URLs that aren't recorded and test as seen: about what is predicted."""
    predicted = bloom.info().windows["default"].error_rate
    positives = sum(bloom.contains(f"https://example.com/other/{i}" for i in range(probes)))
    low, high = stats.binom.interval(0.999, probes, predicted)
    assert low <= positives <= high
    return float(positives / probes)


def test_a_full_filter_has_half_of_its_rate_and_one_that_has_grown_less_than_all(
    client: Redis,
) -> None:
    """The other half is for the bitmaps that may follow."""
    seeds = fixed_seeds(optimal_hashes(20_000, RATE))
    bloom = BloomFilter(client, "rate", capacity=20_000, error_rate=RATE, blocks=4, seeds=seeds)
    bloom.extend(f"https://example.com/page/{i}" for i in range(20_000))
    assert bloom.info().windows["default"].bitmaps == 1
    assert 0.3 * RATE < measure(bloom, 40_000) < 0.6 * RATE
    bloom.extend(f"https://example.com/page/{i}" for i in range(134_000))
    assert bloom.info().windows["default"].bitmaps == 3
    assert 0.5 * RATE < measure(bloom, 40_000) < RATE


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_six_generations_that_have_grown_keep_within_one_error_rate(
    moved: MovedServer, ring: str
) -> None:
    options: dict[str, Any] = {"capacity": 200, "error_rate": RATE, "seeds": fixed_seeds(10)}
    options |= {"window": "6 days", "period": "1 day", "ring": ring, "blocks": 1}
    with moved.client() as client:
        bloom = BloomFilter(client, "budget", **options)
        for day in range(6):
            # Its bitmaps take 200, 400, 800 and 1,600; later generations start with a larger one.
            bloom.extend(f"https://example.com/{day}/page/{i}" for i in range(2_800))
            moved.move(DAY if day < 5 else 0)
        generations = bloom.info().windows["default"].generations
        assert (len(generations), generations[-1].bitmaps) == (
            6,
            4 if ring == "write-newest" else 7,
        )
        assert 0.2 * RATE < measure(bloom, 25_000) < RATE
