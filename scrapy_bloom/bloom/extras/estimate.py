"""How many items bitmaps hold, by the bits that are set in them. Pure arithmetic.

Letters as in ``sizing``: ``n`` items, ``m`` bits, ``k`` seeds. A bit stays 0 with probability
``(1 - 1/m) ** (k * n)``, so ``n`` follows from the share of bits that are 0.

Source: S. J. Swamidass, P. Baldi, Mathematical Correction for Fingerprint Similarity Measures to
Improve Chemical Retrieval, J. Chem. Inf. Model. 47(3), 2007, doi:10.1021/ci600526a.
"""

import math

#: Counters of a counting filter, two a byte: the mask of the lowest bit of each.
_LOWEST = b"\x11"


def cardinality(ones: int, num_bits: int, num_hashes: int) -> float:
    """Return how many items set so many bits, most likely; infinity if no bit is left at 0.

    ``ln(1 - X/m) / (k * ln(1 - 1/m))``, the exact form of Swamidass and Baldi's
    ``-m/k * ln(1 - X/m)``, which is 2% off in a bitmap of 25 bits.

    Args:
        ones: bits that are set, 0 to ``num_bits``.
        num_bits: bits of the bitmap, at least 1.
        num_hashes: bits an item sets, at least 1.
    """
    if ones >= num_bits:
        return math.inf
    if ones == 0:
        return 0.0
    return math.log1p(-ones / num_bits) / (num_hashes * math.log1p(-1 / num_bits))


def overlap(ones: tuple[int, int], of_both: int, num_bits: int, num_hashes: int) -> float:
    """Return how many items are in both of two bitmaps: n(A) + n(B) - n(A or B).

    Where they have little in common this may be below 0 by chance: a sum over many bitmaps is right
    only if nothing is cut off before its end.

    Args:
        ones: bits that are set in each.
        of_both: bits that are set in one of them or the other.
        num_bits: bits of either.
        num_hashes: bits an item sets.
    """
    first, second = (cardinality(each, num_bits, num_hashes) for each in ones)
    return first + second - cardinality(of_both, num_bits, num_hashes)


def places_in_use(counters: int, num_bytes: int) -> int:
    """Return a bitmap that has one bit, of four, set for each counter that is not 0.

    Args:
        counters: a layer of a counting filter, its bytes read as an integer.
        num_bytes: how many bytes those are.
    """
    folded = counters | counters >> 2
    return (folded | folded >> 1) & int.from_bytes(_LOWEST * num_bytes, "big")
