"""Matrices of parameters: a few combinations in every run, all of them in `make test-all`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mostly_slow(combinations: Iterable[Any], often: Callable[..., bool]) -> list[Any]:
    """Return parameters of which all are marked slow but those that run often.

    Args:
        combinations: a tuple of values each, or the value of one parameter.
        often: is called with the values; whether that combination is part of every run.
    """
    tuples = [one if isinstance(one, tuple) else (one,) for one in combinations]
    return [
        pytest.param(*values, marks=[] if often(*values) else pytest.mark.slow) for values in tuples
    ]
