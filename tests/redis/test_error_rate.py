"""The measured false-positive rate of a full filter agrees with the predicted one.

Seeds and URLs are fixed, so the outcome is the same each time; that it lies in the 99% interval
says something about the hash scheme, the sizing and the scripts together.
"""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import redis
from scipy import stats
from support.matrix import mostly_slow
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import Hasher
from scrapy_bloom.bloom.model.sizing import optimal_hashes

CAPACITY = 200_000
PROBES = 400_000
CHUNK = 50_000
SEEDS = [5, 7, 11, 13, 31, 37, 61]


@pytest.fixture(scope="module")
def own_server(any_binary: str) -> Iterator[Server]:
    with Server(any_binary) as server:
        yield server


@pytest.mark.parametrize(
    ("error_rate", "blocks", "seeds"),
    mostly_slow(
        [
            *((rate, blocks, None) for rate in (1e-3, 1e-4) for blocks in (1, 4, 16)),
            (1e-3, 16, SEEDS),
            (1e-4, 4, SEEDS),
        ],
        lambda error_rate, blocks, seeds: (error_rate, blocks, seeds) == (1e-3, 4, None),
    ),
)
def test_measured_rate_at_capacity_is_as_predicted(
    own_server: Server, error_rate: float, blocks: int, seeds: list[int] | None
) -> None:
    """Of a filter that does not grow: all of the error rate is that of its one layer."""
    seeds = seeds or fixed_seeds(optimal_hashes(CAPACITY, error_rate))
    with own_server.client() as client:
        client.flushall()
        bloom = BloomFilter(
            client,
            "rate",
            capacity=CAPACITY,
            error_rate=error_rate,
            blocks=blocks,
            seeds=seeds,
            growth=0,
        )
        bloom.extend(f"https://example.com/page/{i}" for i in range(CAPACITY))
        predicted = bloom.info().estimated_error_rate
        positives = count_false_positives(bloom)
    assert 0.5 * error_rate < predicted <= error_rate
    low, high = stats.binom.interval(0.99, PROBES, predicted)
    assert low <= positives <= high


#: URLs of one generation: its four layers take 2,000, 4,000, 8,000 and 16,000.
GENERATION = 28_000
GENERATIONS = 6
BUDGET = 1e-3


@pytest.fixture(scope="module")
def probes() -> tuple[list[str], np.ndarray]:
    """URLs that are in no filter, and their hashes."""
    urls = [f"https://example.com/other/{i}" for i in range(PROBES)]
    hasher = Hasher(tuple(fixed_seeds(14)), 1)
    hashes = np.empty((PROBES, 14), np.uint64)
    for place, url in enumerate(urls):
        hashes[place] = hasher.hashes(url.encode())[1]
    return urls, hashes


@pytest.mark.parametrize(
    "order", [pytest.param("write-newest", marks=pytest.mark.slow), "write-all"]
)
def test_six_generations_that_have_grown_keep_within_one_error_rate(
    own_server: Server, probes: tuple[list[str], np.ndarray], order: str
) -> None:
    """The error budget: what is measured over everything tested is at most what was asked for.

    The bitmaps are read and probed here: the server would take a minute. That it sees in them what
    is seen here is asked for a few.
    """
    urls, hashes = probes
    with own_server.client() as client:
        client.flushall()
        for run in range(GENERATIONS):
            bloom = grown_filter(client, order, f"run {run}")
            bloom.extend(f"https://example.com/run/{run}/page/{i}" for i in range(GENERATION))
        info = bloom.info()
        seen = probe_bitmaps(client, bloom, hashes)
        sample = [*np.flatnonzero(seen).tolist(), *range(0, PROBES, 500)]
        assert bloom.contains(urls[i] for i in sample) == seen[sample].tolist()
    assert len(info.generations) == GENERATIONS
    assert all(generation.layers >= 4 for generation in info.generations)
    assert 0.5 * BUDGET < info.estimated_error_rate <= info.error_bound <= BUDGET
    positives = int(seen.sum())
    assert positives <= BUDGET * PROBES
    low, high = stats.binom.interval(0.999, PROBES, info.estimated_error_rate)
    assert low <= positives <= high


def grown_filter(client: redis.Redis, order: str, run: str) -> BloomFilter:
    return BloomFilter(
        client,
        "budget",
        capacity=2_000,
        error_rate=BUDGET,
        blocks=1,
        seeds=fixed_seeds(14),
        window=f"{GENERATIONS} runs",
        period="1 run",
        ring=order,
        run=run,
    )


def probe_bitmaps(client: redis.Redis, bloom: BloomFilter, hashes: np.ndarray) -> np.ndarray:
    """Return which probes are in any of the bitmaps that are tested."""
    snapshot = bloom.look()
    assert snapshot is not None
    seen = np.zeros(len(hashes), bool)
    for layer in snapshot.rings[0].tested:
        stored = client.get(f"{{budget:0}}:{layer.name}")
        assert isinstance(stored, bytes)
        bits = np.unpackbits(np.frombuffer(stored, np.uint8)).astype(bool)
        inside = np.ones(len(hashes), bool)
        for column in range(hashes.shape[1]):
            inside &= bits[hashes[:, column] % layer.num_bits]
        seen |= inside
    return seen


def count_false_positives(bloom: BloomFilter) -> int:
    """Return how many of so many URLs that are not recorded test as seen."""
    return sum(
        sum(bloom.contains(f"https://example.com/other/{i}" for i in range(start, start + CHUNK)))
        for start in range(0, PROBES, CHUNK)
    )


def fixed_seeds(count: int) -> list[int]:
    return random.Random(2026).sample(range(2**32), count)
