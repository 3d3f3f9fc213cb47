"""How often a filter is wrong, as measured: a sample of its items is on exact record. Pure.

Whether an item is in the sample follows from its hash, so all clients agree. The first time that
one is claimed it is put on record, with the answer; if that was "seen", it was wrong, for nobody
had claimed it. ``audit.lua`` does so, in the same step as the claim.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from mmh3 import mmh3_x64_128_utupledigest as murmur3

#: Turns a filter's first seed into that of the sample's hash.
SEED_MASK = 0x5BD1E995
#: Standard deviations of a normal distribution that 95% are within.
Z = 1.959964


@dataclass(frozen=True, slots=True)
class Audited:
    """What the records of a filter say.

    Args:
        count: items that were judged, and are not forgotten.
        wrong: those that the filter said it had seen when they were claimed for the first time.
        records: exact records: one for each generation of a block.
        lost: records that have lost something (evicted, deleted). Until their generations are
            forgotten, the blocks that these belong to judge nothing.
    """

    count: int = 0
    wrong: int = 0
    records: int = 0
    lost: int = 0

    def __add__(self, other: "Audited") -> "Audited":
        return Audited(
            self.count + other.count,
            self.wrong + other.wrong,
            self.records + other.records,
            self.lost + other.lost,
        )

    @property
    def rate(self) -> float | None:
        """The measured false-positive rate, while what is on record was recorded; None of none."""
        return self.wrong / self.count if self.count else None

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which the rate is, with 95% confidence.

        Source: E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
        1927, doi:10.1080/01621459.1927.10502953.
        """
        if not self.count:
            return 0.0, 1.0
        n, p = self.count, self.wrong / self.count
        middle = p + Z * Z / (2 * n)
        spread = Z * ((p * (1 - p) + Z * Z / (4 * n)) / n) ** 0.5
        scale = 1 + Z * Z / n
        return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def sample(items: Sequence[bytes], places: Iterable[int], rate: float, seed: int) -> str:
    """Return those of a call's items that are in the sample, as ``audit.lua`` reads them.

    Args:
        items: items, of which some are in the call.
        places: where these are.
        rate: share of all items that are in the sample.
        seed: the filter's first seed.
    """
    below = rate * 2**64
    return ";".join(
        f"{number} {blake2b(items[place], digest_size=10).hexdigest()}"
        for number, place in enumerate(places, 1)
        if murmur3(items[place], seed ^ SEED_MASK)[0] < below
    )


def record_name(generation: int) -> str:
    """Return the name of a generation's record; it stands where the layers' names do."""
    return f"{generation}.audit"
