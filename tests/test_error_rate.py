"""The measured false-positive rate of a full filter agrees with the predicted one.

Seeds and URLs are fixed, so the outcome is the same each time; that it lies in the 99% interval
says something about the hash scheme, the sizing and the scripts together.
"""

import random
from collections.abc import Iterator

import pytest
from scipy import stats
from servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.sizing import optimal_hashes

CAPACITY = 200_000
PROBES = 1_000_000
CHUNK = 50_000


@pytest.fixture(scope="module")
def own_server(any_binary: str) -> Iterator[Server]:
    with Server(any_binary) as server:
        yield server


@pytest.mark.parametrize(
    ("error_rate", "blocks", "seeds"),
    [
        *((rate, blocks, None) for rate in (1e-3, 1e-4) for blocks in (1, 4, 16)),
        (1e-3, 16, [5, 7, 11, 13, 31, 37, 61]),
        (1e-4, 4, [5, 7, 11, 13, 31, 37, 61]),
    ],
)
def test_measured_rate_at_capacity_is_as_predicted(
    own_server: Server, error_rate: float, blocks: int, seeds: list[int] | None
) -> None:
    seeds = seeds or fixed_seeds(optimal_hashes(CAPACITY, error_rate))
    with own_server.client() as client:
        client.flushall()
        bloom = BloomFilter(
            client, "rate", capacity=CAPACITY, error_rate=error_rate, blocks=blocks, seeds=seeds
        )
        bloom.extend(f"https://example.com/page/{i}" for i in range(CAPACITY))
        predicted = bloom.info().estimated_error_rate
        positives = sum(
            sum(
                bloom.contains(
                    f"https://example.com/other/{i}" for i in range(start, start + CHUNK)
                )
            )
            for start in range(0, PROBES, CHUNK)
        )
    assert 0.5 * error_rate < predicted <= error_rate
    low, high = stats.binom.interval(0.99, PROBES, predicted)
    assert low <= positives <= high


def fixed_seeds(count: int) -> list[int]:
    return random.Random(2026).sample(range(2**32), count)
