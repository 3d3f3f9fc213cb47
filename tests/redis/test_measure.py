"""How often a filter is wrong, as measured by random items."""

import math
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from scrapy_bloom import BloomFilter, ConfigurationError, Measurement
from scrapy_bloom.bloom.protocol.info import MAX_PROBES


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    probes = draw(st.integers(1, 10**6))
    return Measurement(probes, draw(st.integers(0, probes)))


# -- the interval --


@given(measurements())
def test_the_interval_is_scipy_s(measured: Measurement) -> None:
    expected = binomtest(measured.seen, measured.probes).proportion_ci(0.95, method="wilson")
    assert measured.low == pytest.approx(expected.low, rel=1e-6, abs=1e-12)
    assert measured.high == pytest.approx(expected.high, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("seen", "low", "high"),
    # Newcombe, Two-sided confidence intervals for the single proportion, 1998, table I, method 3.
    [((81, 263), 0.2553, 0.3662), ((15, 148), 0.0624, 0.1605), ((0, 20), 0.0, 0.1611)],
)
def test_the_interval_is_the_published_one(seen: tuple[int, int], low: float, high: float) -> None:
    measured = Measurement(probes=seen[1], seen=seen[0])
    assert (round(measured.low, 4), round(measured.high, 4)) == (low, high)


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
def test_what_is_measured_is_the_rate_of_the_filter(
    client: redis.Redis, options: dict[str, Any]
) -> None:
    """Filled to its capacity it has the rate that it was made for, and that ``info`` estimates."""
    bloom = BloomFilter(
        client, "shop", capacity=2_000, error_rate=0.05, growth=0, seeds=[1, 2, 3, 4], **options
    )
    bloom.extend(f"{number}" for number in range(2_000))
    measured = bloom.measure(40_000)
    # Six standard deviations of the measurement, and the spread of the bits that are set.
    expected = bloom.info().estimated_error_rate
    spread = 6 * math.sqrt(expected * (1 - expected) / 40_000)
    assert expected > 0.005
    assert abs(measured.rate - expected) < spread + 0.15 * expected


def test_an_empty_filter_has_seen_nothing(client: redis.Redis) -> None:
    measured = BloomFilter(client, "shop").measure(10_000)
    assert (measured.probes, measured.seen, measured.low) == (10_000, 0, 0)
    assert measured.high == pytest.approx(3.84e-4, rel=1e-3)


def test_nothing_is_recorded(client: redis.Redis) -> None:
    bloom = BloomFilter(client, "shop", capacity=100, error_rate=0.1, growth=0)
    bloom.extend(f"{number}" for number in range(100))
    before = {key: client.dump(key) for key in client.keys()}
    assert bloom.measure(5_000).seen > 0
    assert {key: client.dump(key) for key in client.keys()} == before


@pytest.mark.parametrize("probes", [0, -1, 1.5, "many", None, True, MAX_PROBES + 1])
def test_probes_are_a_whole_number(client: redis.Redis, probes: object) -> None:
    with pytest.raises(ConfigurationError, match="probes is how many random items to test"):
        BloomFilter(client, "shop").measure(probes)  # type: ignore[arg-type]
    assert client.dbsize() == 0
