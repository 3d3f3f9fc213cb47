"""Headers and rings as text: what is written is read back, and what was damaged is refused."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.generations import (
    MAX_FURTHER_LAYERS,
    MAX_LAYERS,
    Config,
    Generation,
    Layer,
)
from scrapy_bloom.bloom.model.header import WRITE_ALL, Header
from scrapy_bloom.bloom.model.ring import RUNS_KEPT, Ring
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, MAX_GENERATIONS, MAX_TIME, Schedule, Span

NOW = 1_700_000_000
HEADER = Header(id="0" * 32, blocks=16, seeds=(5, 7, 11), fingerprinter="a.B")
SCHEDULE = Schedule(Span(12, HALF_MONTHS), Span(2, HALF_MONTHS))
CONFIG = Config(100_000, 1e-3, SCHEDULE, growth=1.5, max_memory=1 << 30)
RING = Ring.fresh(HEADER, CONFIG, NOW, block=3, run="monday")


def stored(**damage: Any) -> str:
    return json.dumps({**json.loads(ring_codec.dump(RING)), **damage})


# -- headers --


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("id", value) for value in ("x", "")),
        *(("blocks", value) for value in ("0", "1e3", "99999999")),
        *(("seeds", value) for value in ("[1,1]", "[4294967296]", "nonsense", "[" * 100_000)),
        *(("order", value) for value in ("", "write-some")),
        *((name, value) for name in ("stagger", "counting") for value in ("", "2", "True")),
        ("format", "9"),
    ],
)
def test_damaged_header_is_refused(name: str, value: str) -> None:
    fields = HEADER.to_fields()
    with pytest.raises(ValueError, match=r"damaged|Expecting value|format is '9', and this .* 3"):
        Header.from_fields({**fields, name: value})
    del fields[name]
    with pytest.raises(ValueError, match=name):
        Header.from_fields(fields)
    with pytest.raises(ValueError, match="damaged"):  # they do not go together
        Header.from_fields({**HEADER.to_fields(), "counting": "1", "order": WRITE_ALL})


# -- rings --


LAYER = {"generation": 0, "index": 0, "num_bits": 8, "capacity": 1}
BARE = {"number": 0, "opened": 0, "dated": 0, "run": 0, "layers": [LAYER]}
STORED_CONFIG = json.loads(ring_codec.dump(RING))["config"]
BAD_CONFIG = [
    *(("capacity", 0), ("window", "soon"), ("max_memory", 0)),
    *(("error_rate", value) for value in (0, 1, "0.1", float("nan"))),
    *(("period", value) for value in (None, "1 day")),
    # 0.5 would shrink to nothing.
    *(("growth", value) for value in (None, 0.5, 65, True, float("nan"))),
]
BAD_GENERATION = [
    ("number", 1),  # its layer is of another
    ("opened", 2**38),  # no calendar goes so far
    *(("layers", value) for value in ([], [None], [{**LAYER, "index": 1}, LAYER])),
    *(("layers", [{**LAYER, "num_bits": value}]) for value in (0, 2**40)),
    ("layers", [{**LAYER, "capacity": 0}]),
    ("layers", [{**LAYER, "index": MAX_LAYERS}]),
]


def test_incomplete_ring_is_refused() -> None:
    state = json.loads(ring_codec.dump(RING))
    for missing in state:
        rest = {name: value for name, value in state.items() if name != missing}
        with pytest.raises(ValueError, match=f"damaged.*{missing}"):
            ring_codec.parse(json.dumps(rest))
    for missing in STORED_CONFIG:
        config = {name: value for name, value in STORED_CONFIG.items() if name != missing}
        with pytest.raises(ValueError, match=f"damaged.*{missing}"):
            ring_codec.parse(stored(config=config))


def ints_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each int in a value, by what holds it and its place there."""
    for place in value if isinstance(value, dict) else range(len(value)):
        if type(value[place]) is int:
            yield value, place
        elif isinstance(value[place], dict | list):
            yield from ints_in(value[place])


@pytest.mark.parametrize("wrong", ["1", True, 1.5, -1, 2**63])
def test_what_is_no_int_or_out_of_range_is_refused(wrong: object) -> None:
    state = json.loads(ring_codec.dump(RING))
    places = [*ints_in(state)]
    assert len(places) > 12
    for holder, place in places:
        good, holder[place] = holder[place], wrong
        with pytest.raises(ValueError, match="damaged"):
            ring_codec.parse(json.dumps(state))
        holder[place] = good


@pytest.mark.parametrize(
    "damage",
    [
        {"config": None},
        *({"generations": some} for some in ([], None, [None], [BARE, BARE])),
        {"generations": [BARE, {**BARE, "number": 1, "layers": [{**LAYER, "generation": 1}]}]},
        {"header": {}},
        {"block": 16},
        *({"runs": runs} for runs in (None, "monday", [1], ["x"] * (RUNS_KEPT + 1))),
        # It goes with the period, but with no number of generations.
        {"config": {**STORED_CONFIG, "window": "5 months", "period": "2 months"}},
        *({"config": {**STORED_CONFIG, name: value}} for name, value in BAD_CONFIG),
        *({"generations": [{**BARE, name: value}]} for name, value in BAD_GENERATION),
    ],
)
def test_damaged_ring_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"damaged|format"):
        ring_codec.parse(stored(**damage))


def test_a_ring_has_as_many_generations_and_layers_as_calls_can_name() -> None:
    """One byte tells which of the ring's sizes a layer has (calls.py)."""
    many: list[dict[str, Any]] = [
        {**BARE, "number": number, "layers": [{**LAYER, "generation": number}]}
        for number in range(MAX_GENERATIONS, -1, -1)
    ]
    with pytest.raises(ValueError, match="generations = 65"):
        ring_codec.parse(stored(generations=many))
    for one in many[:4]:
        one["layers"] = [{**one["layers"][0], "index": index} for index in range(MAX_LAYERS)]
    with pytest.raises(ValueError, match=r"layers = \d+"):
        ring_codec.parse(stored(generations=many[:-1]))


def test_the_largest_ring_is_read_back() -> None:
    """All numbers as large as they may be, all layers and runs, runs of characters with escapes."""
    count, bits = 1 << 61, 1 << 32
    header = replace(HEADER, blocks=16_384, seeds=tuple(range(2**32 - 64, 2**32)))
    header = replace(header, fingerprinter="a" * 300, stagger=True)
    schedule = Schedule(Span(128, HALF_MONTHS), Span(2, HALF_MONTHS))
    config = Config(count, 1.2345678901234567e-15, schedule, 63.12345678901234, count)
    layers = [64, 64, 64] + [1] * 59 + [2, 2]
    generations = [
        Generation(n, MAX_TIME, MAX_TIME, count, tuple(Layer(n, i, bits, count) for i in range(k)))
        for n, k in zip(range(count, count - 64, -1), layers, strict=True)
    ]
    assert sum(layers) == 64 + MAX_FURTHER_LAYERS
    runs = tuple(chr(0x1F600 + number) * 100 for number in range(RUNS_KEPT))
    ring = Ring(header, config, 16_383, tuple(generations), count, count, runs, MAX_TIME)
    assert ring_codec.parse(ring_codec.dump(ring)) == ring
