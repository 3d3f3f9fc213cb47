"""The ring as a value: geometry, and what it does with stored text that is not what it wrote."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom import state
from scrapy_bloom.header import FORMAT, Header
from scrapy_bloom.ring import Config, Ring
from scrapy_bloom.sizing import plan

HEADER = Header(id="0" * 32, blocks=16, seeds=(5, 7, 11), fingerprinter="a.B")
CONFIG = Config(capacity=100_000, error_rate=1e-3)
RING = Ring.fresh(HEADER, CONFIG, now=1_700_000_000)

headers = st.builds(
    Header,
    id=st.text("0123456789abcdef", min_size=32, max_size=32),
    blocks=st.integers(1, 64),
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=20, unique=True).map(tuple),
    fingerprinter=st.text(max_size=50),
)
configs = st.builds(Config, capacity=st.integers(1, 10**6), error_rate=st.floats(1e-6, 0.5))


@given(headers, configs, st.integers(0, 2**40))
def test_a_ring_survives_being_written_down(header: Header, config: Config, now: int) -> None:
    ring = Ring.fresh(header, config, now)
    assert state.parse(state.dump(ring)) == ring
    assert Header.from_fields(header.to_fields()) == header


def test_a_fresh_ring_has_one_empty_layer_of_the_planned_size() -> None:
    planned = plan(100_000, 1e-3, blocks=16, num_hashes=3)
    assert RING.layers == (RING.active,)
    assert RING.active.num_bits == planned.num_bits
    assert RING.active.capacity == planned.block_capacity
    assert RING.active.name == "0.0"
    assert RING.generations[0].opened == 1_700_000_000


def test_a_cleared_ring_never_reuses_a_generation_number() -> None:
    """So a stale client cannot take a new bitmap for the one it knew."""
    cleared = RING.cleared(now=1_800_000_000)
    assert cleared.active.name == "1.0"
    assert cleared.header == HEADER
    assert cleared.cleared(now=1).active.name == "2.0"


def test_clearing_applies_a_new_configuration() -> None:
    larger = RING.cleared(now=0, config=Config(10_000_000, 1e-3))
    assert larger.active.num_bits > 90 * RING.active.num_bits


def test_the_state_is_json_with_a_full_copy_of_the_header() -> None:
    state = json.loads(state.dump(RING))
    assert state["header"] == HEADER.to_fields()


def test_unknown_format_is_refused_by_number() -> None:
    fields = {**HEADER.to_fields(), "format": "9"}
    with pytest.raises(ValueError, match=f"format is '9', and this version reads {FORMAT}"):
        Header.from_fields(fields)


def test_unknown_hash_scheme_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="hash scheme is 'md5'"):
        Header.from_fields({**HEADER.to_fields(), "scheme": "md5"})


@pytest.mark.parametrize(
    "damage",
    [
        {"id": "x"},
        {"id": ""},
        {"blocks": "0"},
        {"blocks": "-1"},
        {"blocks": "1e3"},
        {"blocks": "99999999"},
        {"seeds": "[]"},
        {"seeds": "[1,1]"},
        {"seeds": "[-1]"},
        {"seeds": "[4294967296]"},
        {"seeds": "[true]"},
        {"seeds": "{}"},
        {"seeds": "nonsense"},
        {"seeds": str(list(range(65)))},
    ],
)
def test_damaged_header_is_refused(damage: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"damaged|Expecting value"):
        Header.from_fields({**HEADER.to_fields(), **damage})


@pytest.mark.parametrize("missing", sorted(set(HEADER.to_fields()) - {"fingerprinter"}))
def test_incomplete_header_is_refused(missing: str) -> None:
    fields = HEADER.to_fields()
    del fields[missing]
    with pytest.raises(ValueError, match=missing):
        Header.from_fields(fields)


LAYER = {"generation": 0, "index": 0, "num_bits": 8, "capacity": 1}


@pytest.mark.parametrize(
    "damage",
    [
        {"config": {}},
        {"config": {"capacity": 0, "error_rate": 0.1}},
        {"config": {"capacity": 1, "error_rate": 1}},
        {"config": {"capacity": 1, "error_rate": 1.5}},
        {"config": {"capacity": 1, "error_rate": 0.1, "more": 1}},
        {"generations": []},
        {"generations": [{"number": 0, "opened": 0, "layers": []}]},
        {"generations": [{"number": 1, "opened": 0, "layers": [LAYER]}]},
        {"generations": [{"number": 0, "opened": -1, "layers": [LAYER]}]},
        {"generations": [{"number": 0, "opened": 0, "layers": [{**LAYER, "num_bits": 2**40}]}]},
        {"generations": [{"number": 0, "opened": 0, "layers": [{**LAYER, "num_bits": 0}]}]},
        {"generations": [{"number": 0, "opened": 0, "layers": [{**LAYER, "capacity": "1"}]}]},
        {"generations": [{"number": 0, "opened": 0, "layers": [{**LAYER, "index": -1}]}]},
        {"header": None},
        {"header": "x"},
        {"header": {}},
        {"generations": None},
    ],
)
def test_damaged_ring_is_refused(damage: dict[str, object]) -> None:
    state = {**json.loads(state.dump(RING)), **damage}
    with pytest.raises(ValueError, match=r"damaged|format"):
        state.parse(json.dumps(state))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["header", "config", "generations", "layers"]), x)
        ),
    )
)
def test_any_json_is_a_value_error_at_worst(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        state.parse(json.dumps(value))


@given(st.text())
def test_any_text_is_a_value_error_at_worst(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        state.parse(text)


def test_deeply_nested_text_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="damaged"):
        state.parse("[" * 200_000)


def test_header_takes_part_in_equality() -> None:
    assert replace(RING, header=replace(HEADER, id="1" * 32)) != RING
