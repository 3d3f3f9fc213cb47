"""Each target on some hundred inputs, and that they find what they are for.

Coverage-guided runs are long: `make fuzz`.
"""

import tracemalloc
from random import Random

import pytest

from fuzz.target import Target
from fuzz.targets import TARGETS
from scrapy_bloom.bloom.protocol import scripts

#: Inputs of a target that are tried beside its seeds.
CHANGED = 150
#: Bytes that an input may make a parser allocate, whatever it claims to hold.
MOST = 24 << 20


def try_inputs(target: Target, changed: int) -> None:
    dice = Random(1)
    seeds = [*target.seeds()]
    for data in seeds:
        target.run(data)
    short = [data for data in seeds if len(data) <= target.max_length]
    for _ in range(changed):
        data = dice.choice(short)
        for _ in range(dice.randint(1, 3)):
            data = target.mutate(data, dice)
        target.run(data)


@pytest.mark.filterwarnings("ignore")  # Python's, of literals and escapes in settings
@pytest.mark.parametrize("name", TARGETS)
def test_parsers_raise_what_they_document(name: str) -> None:
    try_inputs(TARGETS[name], CHANGED)


def test_an_error_that_is_not_documented_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bounds of a reply, dates overflow, and lists are too short."""
    monkeypatch.setattr(scripts, "check", lambda *_: None)
    with pytest.raises((OverflowError, ValueError)):
        try_inputs(TARGETS["replies"], 1_000)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["headers", "rings", "claims", "requests", "archives", "settings"])
def test_hostile_inputs_take_little_memory(name: str) -> None:
    """Deep nesting, huge numbers, millions of layers, files that unpack to gigabytes."""
    target = TARGETS[name]
    long = sorted(target.seeds(), key=len)[-12:]
    for data in long:
        tracemalloc.start()
        try:
            target.run(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < MOST, data[:100]
