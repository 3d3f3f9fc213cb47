"""The curves of a run, as one SVG."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from soak.stand import WARM_UP
from soak.verdict import MEASURES, column

COLUMNS = 3


def draw(samples: Sequence[dict[str, str]], path: Path) -> None:
    """Draw each measure over the requests, with the warm-up shaded."""
    rows = -(-len(MEASURES) // COLUMNS)
    figure = Figure(figsize=(10, 2.1 * rows), layout="constrained")
    for number, measure in enumerate(MEASURES):
        axes = figure.add_subplot(rows, COLUMNS, number + 1)
        requests, values = column(samples, measure.column)
        millions = [count / 1e6 for count in requests]
        axes.plot(millions, values, linewidth=0.7, color="#2a6f97")
        axes.axvspan(0, millions[-1] * WARM_UP, color="#eeeeee", linewidth=0)
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, millions[-1])
        axes.set_title(measure.meaning, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("million requests that the measured crawler has looked up", fontsize=8)
    # The same samples give the same file.
    with mpl.rc_context({"svg.hashsalt": "soak"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
