"""How far a migration is: kept, read back, and used only where it still holds; and its pace."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.migration.batches import BATCH, END, Batch
from scrapy_bloom.migration.progress import Pace, State, StateFile, resume

counts = st.integers(0, 10**15)
positions = st.one_of(
    st.sampled_from(["", END]),
    st.integers(0, 2**64 - 1).map(str),
    st.integers(0, 2**60).map("binary {}".format),
)
states = st.builds(
    State,
    st.text(),
    st.text(),
    counts,
    positions,
    counts,
    counts,
    counts,
    counts,
    counts,
    st.text(),
    counts,
)


@given(states)
def test_a_state_is_read_back(state: State) -> None:
    assert State.parse(state.dump()) == state


@pytest.mark.parametrize(
    "change",
    [
        *({"read": -1}, {"read": True}, {"read": 1.0}, {"read": 1 << 63}, {"read": "1"}),
        *({"position": "x"}, {"position": "-1"}, {"position": 0}, {"position": "1\n"}),
        *({"source": None}, {"other": 1}),
    ],
)
def test_a_damaged_state_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    values = json.loads(State("a", "b").dump()) | change
    with pytest.raises(ValueError, match="damaged"):
        State.parse(json.dumps(values))
    (tmp_path / "state").write_text(json.dumps(values))
    assert StateFile(tmp_path / "state").load() is None


@given(st.binary(max_size=200))
def test_any_bytes_are_no_state(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    assert StateFile(path).load() is None


@pytest.mark.parametrize("text", ["[]", "{}", "1", "[" * 60_000, '{"source": '])
def test_other_json_is_no_state(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").write_text(text)
    assert StateFile(tmp_path / "state").load() is None


def test_the_file_has_the_last_state_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "deep" / "state.json")
    assert file.load() is None
    for read in (1, 2):
        file.save(State("a", "b", read=read))
        assert file.load() == State("a", "b", read=read)
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["state.json"]
        assert (tmp_path / "deep" / "state.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "deep" / "state.4711").touch()  # by a process that was killed
    (tmp_path / "deep" / "other.json").touch()
    file.delete()
    file.delete()
    assert file.load() is None
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["other.json"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        StateFile(tmp_path / "file" / "state").save(State("a", "b"))


def test_a_batch_is_counted() -> None:
    batch = Batch("7", {"w": [b"a", b"b"]}, 5, 2, 1, 1, "b'x'")
    state = (
        State("s", "t", 10).after(batch, 1).after(Batch(END, read=1, rejected=1, example="y"), 0)
    )
    assert state == State("s", "t", 11, END, 6, 1, 3, 1, 1, "b'x'")
    assert state.known == 1


def test_it_goes_on_where_nothing_has_changed() -> None:
    stored = State("s", "t", 100, "7", 50, 40, size=9)
    for count, size in ((100, 9), (101, 10)):
        assert resume(stored, State("s", "t", count, size=size)) == (stored, "")
    assert resume(None, State("s", "t", 5)) == (State("s", "t", 5), "")


@pytest.mark.parametrize(
    ("fresh", "reason"),
    [
        (State("other", "t", 100), "the source has changed"),
        (State("s", "other", 100, size=9), "the filter has lost"),
        (State("s", "t", 99, size=9), "the filter has lost"),
        (State("s", "t", 100, size=8), "the source has lost entries"),
        (State("", "t", 100), ""),
    ],
)
def test_it_begins_again_where_something_has(fresh: State, reason: str) -> None:
    state, said = resume(State("s", "t", 100, "7", 50, 40, size=9), fresh)
    assert state is fresh
    assert said.startswith(reason)
    assert bool(said) == bool(reason)


@given(st.integers(1, 10_000), st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 9))))
def test_the_pace_is_kept(rate: int, batches: list[tuple[int, float]]) -> None:
    """In the time since the first batch, no more entries than the rate allows."""
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        assert seconds >= 0
        now += seconds

    pace = Pace(rate, lambda: now, sleep)
    assert 1 <= pace.batch <= min(rate, BATCH)
    total = 0
    for entries, work in batches:
        now += work
        pace.spend(entries)
        total += entries
        assert total <= rate * (now - 1000.0) + 1e-3


def test_without_a_rate_nothing_waits() -> None:
    pace = Pace(None, sleep=lambda _: pytest.fail("it waited"))
    pace.spend(10**9)
    assert pace.batch == BATCH
