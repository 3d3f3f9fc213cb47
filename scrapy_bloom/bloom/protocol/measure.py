"""How often a filter is wrong, as measured with items that nobody has recorded. No I/O."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.protocol.membership import MAX_URLS_PER_ROUND, contains
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.session import FilterSession

#: Bytes of a random item: as many as Scrapy's fingerprints have, too many to meet a recorded one.
ITEM_BYTES = 20
MAX_PROBES = 10**9
#: Standard deviations from the mean that 95% of a normal distribution are within.
Z = 1.959964


@dataclass(frozen=True, slots=True)
class Measurement:
    """How many random items a filter wrongly takes for seen.

    Nobody has recorded these items, so the share that is "seen" is the chance that a new URL is
    hidden now.

    Args:
        probes: random items that were tested.
        seen: those of them that the filter said it had seen.
    """

    probes: int
    seen: int

    @property
    def rate(self) -> float:
        """The share that is seen: the false-positive rate, as measured."""
        return self.seen / self.probes

    @property
    def low(self) -> float:
        """Lower end of the rate's 95% confidence interval."""
        return self._interval[0]

    @property
    def high(self) -> float:
        """Upper end of the rate's 95% confidence interval."""
        return self._interval[1]

    @property
    def _interval(self) -> tuple[float, float]:
        # Wilson's score interval, which also holds for none seen of many: E. B. Wilson, Probable
        # Inference, the Law of Succession, and Statistical Inference, 1927, JASA 22(158), 209-212,
        # doi:10.1080/01621459.1927.10502953.
        n, rate = self.probes, self.rate
        middle = rate + Z * Z / (2 * n)
        spread = Z * sqrt(rate * (1 - rate) / n + (Z / (2 * n)) ** 2)
        scale = 1 + Z * Z / n
        # At the ends rounding may miss 0, 1 and the rate itself.
        low, high = (middle - spread) / scale, (middle + spread) / scale
        return max(0.0, min(low, rate)), min(1.0, max(high, rate))


def rounds(probes: Any) -> Iterator[int]:
    """Split a number of probes into rounds of bounded size.

    Raises:
        ConfigurationError: it is no number of probes.
    """
    left = validators.whole_number("probes", probes, 1, MAX_PROBES, "how many random items to test")
    while left:
        size = min(left, MAX_URLS_PER_ROUND)
        yield size
        left -= size


def probe(session: FilterSession, count: int) -> Operation[int]:
    """Test so many random items, and record nothing; return how many are seen."""
    items = [secrets.token_bytes(ITEM_BYTES) for _ in range(count)]
    return sum((yield from contains(session, items)))
