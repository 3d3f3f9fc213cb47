"""How large a filter must be: capacity and error rate to bits, and back. Pure arithmetic.

Letters as in the literature: ``n`` URLs, ``m`` bits, ``k`` hash functions (seeds), ``p`` the
false-positive rate. All formulas are those of one bitmap filled through ``k`` independent hash
functions, where a bit stays 0 with probability ``(1 - 1/m) ** (k * n)``.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scrapy_bloom.bloom.errors import ConfigurationError

#: Bits of the largest string that Redis holds (512 MiB, ``proto-max-bulk-len``).
MAX_LAYER_BITS = 1 << 32
#: Bits of a counter, which takes the place of a bit where URLs can be discarded.
COUNTER_BITS = 4
#: Bytes of a planned layer above which more blocks are taken: the first touch of 8 MiB stalls the
#: server for ~3 ms.
COMFORTABLE_LAYER_BYTES = 8 << 20
#: Bits of the largest layer that a generation grows by, 32 MiB: its first touch takes ~12 ms.
MAX_GROWN_BITS = 32 << 23
#: Blocks of a filter unless given or unless its layers would be larger than comfortable.
DEFAULT_BLOCKS = 16
#: Blocks at most: as many as a Redis Cluster has hash slots.
MAX_BLOCKS = 16_384
#: Smallest error rate that 64-bit hashes support.
MIN_ERROR_RATE = 1e-15
#: Seeds at most; 64 halvings of the error rate are more than 64-bit hashes can tell apart.
MAX_HASHES = 64
#: Bits per URL that a number of seeds may take, as a multiple of what the best number takes.
MAX_WASTE = 16
#: Probability that any block fills up before the filter holds its capacity.
OVERFLOW_RISK = 1e-3


@dataclass(frozen=True, slots=True)
class Plan:
    """The geometry of a generation with one layer in each block.

    Args:
        blocks: number of blocks.
        num_hashes: seeds, bits a URL sets.
        block_capacity: URLs one block takes; more than ``capacity / blocks``, because URLs do not
            spread evenly.
        num_bits: bits of one block's layer; counters, of a counting filter.
        counting: whether they are counters.
    """

    blocks: int
    num_hashes: int
    block_capacity: int
    num_bits: int
    counting: bool = False

    @property
    def memory(self) -> int:
        """Bytes of one generation's bitmaps."""
        return self.blocks * layer_bytes(self.num_bits, counting=self.counting)


def plan(
    capacity: int,
    error_rate: float,
    *,
    tested: int = 1,
    growing: bool = True,
    blocks: int | None = None,
    num_hashes: int | None = None,
    counting: bool = False,
) -> Plan:
    """Size a generation of a filter.

    Args:
        capacity: URLs, at least 1.
        error_rate: false-positive rate of the whole filter, 0 < p < 1.
        tested: generations that are tested for each URL, at least 1.
        growing: whether a generation may get further layers.
        blocks: 1 to 16,384; None for 16, or for as many as keep a layer within 8 MiB.
        num_hashes: 1 to 64; None for the number that needs the fewest bits.
        counting: whether URLs can be discarded: counters in the place of bits.

    Raises:
        ConfigurationError: a layer would be larger than the 512 MiB of a Redis string, or the
            number of hashes and the error rate together ask for an absurd amount of memory.
    """
    rate = layer_error_rate(error_rate, tested, 0, growing=growing)
    best = optimal_hashes(capacity, rate)
    k = num_hashes or best
    _refuse_waste(capacity, rate, k, best)
    blocks = blocks or default_blocks(capacity, rate, k, counting=counting)
    n = block_capacity(capacity, blocks)
    bits = required_bits(n, rate, k)
    if bits > max_bits(MAX_LAYER_BITS, counting=counting):
        mebibytes = layer_bytes(bits, counting=counting) >> 20
        raise ConfigurationError(
            f"a filter for capacity = {capacity:,} at error_rate = {error_rate:g} with {k} seeds "
            f"in {blocks:,} blocks needs {mebibytes:,} MiB a layer, and a Redis string holds "
            "512 MiB: set more `blocks`, a smaller `capacity`, "
            "a higher `error_rate` or another number of `seeds`"
        )
    return Plan(blocks, k, n, bits, counting)


def layer_error_rate(error_rate: float, tested: int, index: int, *, growing: bool) -> float:
    """Return the share of a filter's error rate that one layer may use up.

    Every generation that is tested has ``p / tested``. Of that, layer ``i`` of a generation that
    may grow has ``1 / ((i + 1) * (i + 2))``: a half, a sixth, a twelfth, ... The sum over any
    number of layers is below 1, as with halves of halves, but the later layers, which are the
    large ones, have more: layer 20 has 1/462 instead of 1/2,097,152, and needs 18 bits a URL less.

    Source: that the rates of growing filters must be a convergent series is from P. S. Almeida,
    C. Baquero, N. Preguiça, D. Hutchison, Scalable Bloom Filters, IPL 101(6), 2007.
    """
    share = 1 / ((index + 1) * (index + 2)) if growing else 1.0
    return error_rate / tested * share


def optimal_hashes(capacity: int, error_rate: float) -> int:
    """Return the ``k`` that needs the fewest bits: one of the integers around log2(1 / p)."""
    ideal = -math.log2(error_rate)
    around = (math.floor(ideal), math.ceil(ideal))
    candidates = [k for k in around if 1 <= k <= MAX_HASHES] or [1]
    return min(candidates, key=lambda k: required_bits(capacity, error_rate, k))


def default_blocks(
    capacity: int, error_rate: float, num_hashes: int, *, counting: bool = False
) -> int:
    """Return 16 blocks, doubled until a layer is within 8 MiB (or blocks are as many as slots)."""
    blocks = DEFAULT_BLOCKS
    while blocks < MAX_BLOCKS:
        bits = required_bits(block_capacity(capacity, blocks), error_rate, num_hashes)
        if layer_bytes(bits, counting=counting) <= COMFORTABLE_LAYER_BYTES:
            break
        blocks *= 2
    return blocks


def block_capacity(capacity: int, blocks: int) -> int:
    """Return the URLs one block must take so that, very likely, none is full before the filter is.

    The number of URLs in a block is binomial with mean ``capacity / blocks``; the head room is
    Bernstein's bound on its tail, over all blocks together (risk ``OVERFLOW_RISK``).

    Source: S. Boucheron, G. Lugosi, P. Massart, Concentration Inequalities (2013), section 2.8.
    """
    if blocks == 1:
        return capacity
    mean = capacity / blocks
    variance = mean * (1 - 1 / blocks)
    log_risk = math.log(blocks / OVERFLOW_RISK)
    head_room = log_risk / 3 + math.sqrt(log_risk**2 / 9 + 2 * variance * log_risk)
    return min(capacity, math.ceil(mean + head_room))


def required_bits(capacity: int, error_rate: float, num_hashes: int) -> int:
    """Return the least ``m`` whose predicted error rate at ``capacity`` is at most ``error_rate``.

    The exact inversion of ``predicted_error_rate``,
    ``m = ceil(1 / (1 - (1 - p ** (1 / k)) ** (1 / (k * n))))``. The usual approximation
    ``-k * n / ln(1 - p ** (1 / k))`` falls short of the target for small filters (by up to 1.26x).
    """
    zero_bits = _log1m(error_rate, num_hashes)
    bits = math.ceil(-1 / math.expm1(zero_bits / (num_hashes * capacity)))
    # Rounding of the last digits can leave the rate a hair above the target.
    while predicted_error_rate(capacity, bits, num_hashes) > error_rate:
        bits += max(1, bits >> 50)
    return bits


def layer_capacity(num_bits: int, error_rate: float, num_hashes: int) -> int:
    """Return how many URLs a layer takes at an error rate: ``required_bits`` turned round."""
    per_url = _log1m(error_rate, num_hashes) / num_hashes
    return max(1, math.floor(per_url / math.log1p(-1 / num_bits)))


def any_of(rates: Iterable[float]) -> float:
    """Return the probability that any of independent events happens."""
    return -math.expm1(math.fsum(math.log1p(-rate) if rate < 1 else -math.inf for rate in rates))


def predicted_error_rate(count: float, num_bits: int, num_hashes: int) -> float:
    """Return the probability that a URL that is not among ``count`` recorded ones tests as seen.

    ``(1 - (1 - 1/m) ** (k * n)) ** k``, computed so that it stays exact for small rates.

    Source: B. H. Bloom, Space/time trade-offs in hash coding with allowable errors, CACM 13(7),
    1970; the form used here is that of A. Broder and M. Mitzenmacher, Network Applications of
    Bloom Filters: A Survey, Internet Mathematics 1(4), 2004.
    """
    if num_bits == 1:
        return 1.0 if count else 0.0
    fill = -math.expm1(num_hashes * count * math.log1p(-1 / num_bits))
    return float(fill**num_hashes)


def layer_bytes(num_bits: int, *, counting: bool = False) -> int:
    """Return the bytes of a bitmap of so many bits, or of so many counters."""
    return ((COUNTER_BITS if counting else 1) * num_bits + 7) // 8


def max_bits(bits: int, *, counting: bool) -> int:
    """Return how many bits, or counters, there are in a bitmap of so many bits."""
    return bits // COUNTER_BITS if counting else bits


def _refuse_waste(capacity: int, layer_rate: float, num_hashes: int, best: int) -> None:
    bits, least = (required_bits(capacity, layer_rate, k) / capacity for k in (num_hashes, best))
    if bits > MAX_WASTE * least:
        raise ConfigurationError(
            f"{num_hashes} `seeds` and an error rate of {layer_rate:g} a layer "
            f"(`error_rate`) contradict each other: together they need {bits:,.0f} bits a URL, "
            f"and about {best} seeds would need {least:,.0f}. Take another error rate (for "
            "a filter that exists, that which it was made with) or, in a new one (another `key`), "
            f"leave `seeds` unset or take about {best}"
        )


def _log1m(error_rate: float, num_hashes: int) -> float:
    """Return ln(1 - p ** (1 / k)), of the share of 0 bits; exact for p near 0 and near 1."""
    fill = error_rate ** (1 / num_hashes)
    if fill < 0.5:
        return math.log1p(-fill)
    return math.log(-math.expm1(math.log(error_rate) / num_hashes))
