"""How often items collide: a table that many articles on Bloom filters have, beside the theory.

So many bits, so many items, one to four hash functions: an item collides if all of its bits are
set already when it is added. The hash functions are this library's; there is no server in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.report import Outcome, Table, Target, progress
from scrapy_bloom.bloom.model.hashing import Hasher, draw_seeds, offsets

SPACES = (10**3, 10**4, 10**5, 10**6)
SHARES = (0.05, 0.10, 0.15, 0.20, 0.25)
NUM_HASHES = (1, 2, 3, 4)
#: Small spaces are filled again and again, until so many bits have been there to be set.
BITS, QUICK_BITS = 10**6, 10**5
#: Standard deviations by which a count may differ from the theory.
TARGET = 4.0

NOTES = (
    (
        "Share of the items that collide when they are added; in brackets what theory expects, "
        "the mean of (1 - (1 - 1/m)^(k i))^k over i = 0 ... n - 1 (Bloom 1970, "
        "doi:10.1145/362686.362692)."
    ),
)


@dataclass(frozen=True)
class Cell:
    """Collisions in a space.

    Args:
        space: bits.
        share: items, as a share of the bits.
        num_hashes: hash functions.
        rate: share of the items that collided.
        expected: what theory says of it.
        deviations: standard deviations between the two.
    """

    space: int
    share: float
    num_hashes: int
    rate: float
    expected: float
    deviations: float


def run(*, quick: bool = False, full: bool = False, plot: Path) -> Outcome:  # noqa: ARG001
    """Measure, and draw a chart.

    Args:
        quick: fill small spaces less often, and leave the largest out.
        full: the same as usual.
        plot: where the chart is written to.
    """
    spaces, bits = (SPACES[:-1], QUICK_BITS) if quick else (SPACES, BITS)
    cells = []
    with progress() as bar:
        task = bar.add_task("collisions", total=len(spaces) * len(SHARES) * len(NUM_HASHES))
        for space in spaces:
            for share in SHARES:
                for num_hashes in NUM_HASHES:
                    cells.append(measure(space, share, num_hashes, max(1, bits // space)))
                    bar.advance(task)
    draw(cells, plot)
    return Outcome([table(cells)], [_target(cells)], plot=plot)


def measure(space: int, share: float, num_hashes: int, times: int) -> Cell:
    """Fill a space with new items, again and again."""
    items, names = round(space * share), count()
    collided = sum(collisions(space, num_hashes, islice(names, items)) for _ in range(times)) / (
        items * times
    )
    rates = [(1 - (1 - 1 / space) ** (num_hashes * i)) ** num_hashes for i in range(items)]
    expected = sum(rates) / items
    # Of independent items; those of one space lean on each other, a little.
    deviation = (sum(rate * (1 - rate) for rate in rates) / times) ** 0.5 / items
    return Cell(space, share, num_hashes, collided, expected, (collided - expected) / deviation)


def collisions(space: int, num_hashes: int, names: Iterator[int]) -> int:
    """Add items to a space of that many bits; return how many collide."""
    hasher, bits, collided = Hasher(draw_seeds(num_hashes), 1), bytearray(space), 0
    for name in names:
        _, hashes = hasher.hashes(b"%d" % name)
        places = offsets(hashes, space)
        collided += all(bits[place] for place in places)
        for place in places:
            bits[place] = 1
    return collided


def table(cells: Sequence[Cell]) -> Table:
    """Return a row for each space and set, and a column for each number of hash functions."""
    columns = ("bits", "items", *(f"k = {k}" for k in NUM_HASHES))
    result = Table("Collisions", columns, notes=NOTES)
    rows: dict[tuple[int, float], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.space, cell.share), []).append(cell)
    for (space, share), row in rows.items():
        shown = (f"{cell.rate:.2%} ({cell.expected:.2%})" for cell in row)
        result.add(f"{space:,}", f"{round(space * share):,} ({share:.0%})", *shown)
    return result


def _target(cells: Sequence[Cell]) -> Target:
    """Compare the count that is farthest from the theory."""
    worst = max(cells, key=lambda cell: abs(cell.deviations))
    what = (
        f"Standard deviations of collisions from the theory, the farthest of {len(cells)} "
        f"({worst.space:,} bits, {worst.share:.0%} full, {worst.num_hashes} hash functions)"
    )
    return Target.at_most(what, TARGET, abs(worst.deviations), ".1f")


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Write a chart: theory as lines, what was measured as points."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    spaces = sorted({cell.space for cell in cells})
    for k in NUM_HASHES:
        of_k = [cell for cell in cells if cell.num_hashes == k]
        largest = [cell for cell in of_k if cell.space == spaces[-1]]
        shares = [100 * cell.share for cell in largest]
        axes.plot(shares, [100 * cell.expected for cell in largest], color=f"C{k}")
        for space, marker in zip(spaces, "osd^", strict=False):
            some = [cell for cell in of_k if cell.space == space]
            axes.plot(
                [100 * cell.share for cell in some],
                [100 * cell.rate for cell in some],
                marker,
                color=f"C{k}",
                markersize=4,
                label=f"k = {k}" if space == spaces[-1] else None,
            )
    axes.set_xlabel("items, % of the bits")
    axes.set_ylabel("items that collide, %")
    axes.set_title("Collisions: theory (lines), measured in spaces of 10³ to 10⁶ bits", loc="left")
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
