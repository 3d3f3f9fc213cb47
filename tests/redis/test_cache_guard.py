"""The recipe of docs/cache-guard.md and the examples of docs/library.md, as they stand there."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import Redis
from support.paths import ROOT
from support.polling import until
from support.servers import Server

from scrapy_bloom.bloom.model.sizing import DEFAULT_BLOCKS, plan

PAGE = (ROOT / "docs" / "cache-guard.md").read_text()
NAME = "emails"
#: Rows of the table.
KNOWN = 1_500


class Database:
    """A table that counts queries, and those that find nothing."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.queries = self.misses = 0

    def query(self, key: str) -> str | None:
        self.queries += 1
        self.misses += key not in self.rows
        return self.rows.get(key)

    def insert(self, key: str) -> None:
        self.rows[key] = f"row of {key}"

    def keys(self) -> Iterator[str]:
        return iter(list(self.rows))


@pytest.fixture
def database() -> Database:
    database = Database()
    for number in range(KNOWN):
        database.insert(f"known {number}")
    return database


@pytest.fixture
def make(server: Server, client: Redis) -> Iterator[Callable[..., Any]]:
    """Make guards of the page's own code, each with a connection of its own."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    clients = []

    def make(**options: Any) -> Any:
        clients.append(Redis.from_url(server.url, decode_responses=True))
        return names["Guard"](clients[-1], NAME, **{"capacity": 10_000, **options})

    yield make
    for one in clients:
        one.close()


def test_misses_are_kept_from_the_database_at_the_promised_rate(
    make: Callable[..., Any], database: Database
) -> None:
    guard = make(capacity=KNOWN, error_rate=0.02)
    assert 0.98 * KNOWN < guard.rebuild(database.keys) <= KNOWN
    for number in range(KNOWN):
        assert guard.get(f"known {number}", database.query) == f"row of known {number}"
    for number in range(4_000):
        assert guard.get(f"unknown {number}", database.query) is None
    assert database.queries - database.misses == KNOWN
    assert 0 < database.misses < 0.02 * 4_000 * 1.5


def test_a_rebuild_forgets_what_was_deleted_and_all_processes_follow(
    make: Callable[..., Any], database: Database
) -> None:
    guard, other = make(), make()
    guard.rebuild(database.keys)
    for number in range(500):
        del database.rows[f"known {number}"]
    told: list[int] = []
    for times in range(1, 4):
        other.rebuild(database.keys, told.append)
        assert sum(told) == (KNOWN - 500) * times
        asked = [guard.get(f"known {n}", database.query) for n in range(KNOWN)]
        assert asked == [None] * 500 + [f"row of known {n}" for n in range(500, KNOWN)]
    assert database.misses <= 3 * 500 * 0.05


def test_no_row_is_hidden_while_others_write_and_rebuild(
    make: Callable[..., Any], database: Database
) -> None:
    """Also after a rebuild that was interrupted."""
    make().rebuild(database.keys)
    stop, written, hidden, reads = threading.Event(), list[str](), list[str](), list[int]()

    def write(name: str) -> None:
        guard = make()
        while not stop.is_set():
            key = f"new {name} {len(written)}"
            guard.put(key, database.insert)
            written.append(key)

    def read(_: str) -> None:
        guard = make()
        while not stop.is_set():
            hidden.extend(key for key in written[-20:] if guard.get(key, database.query) is None)
            reads.append(1)

    def fail() -> Iterator[str]:
        yield from list(database.rows)[:100]
        raise RuntimeError("the database has gone")

    guard = make()
    with ThreadPoolExecutor(3) as pool:
        tasks = [pool.submit(one, str(number)) for number, one in enumerate((write, write, read))]
        try:
            for _ in range(10):
                with pytest.raises(RuntimeError, match="has gone"):
                    guard.rebuild(fail)
                guard.rebuild(database.keys)
                goal = len(reads) + 2
                # Who has the pointer asks the old buffer before the next rebuild deletes it.
                until(lambda goal=goal: tasks[2].done() or len(reads) >= goal, "reads go on")  # type: ignore[misc]
        finally:
            stop.set()
    for task in tasks:
        task.result()
    assert not hidden
    assert len(written) > 100
    assert all(guard.get(key, database.query) for key in written)


def test_the_page_s_memory_is_what_the_plan_says() -> None:
    rows = re.findall(r"^\| ([0-9.]+) \| ([0-9.]+) MB \|", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for rate, megabytes in rows:
        planned = plan(10_000_000, float(rate), blocks=DEFAULT_BLOCKS)
        assert planned.memory / 1e6 == pytest.approx(float(megabytes), abs=0.06)


def test_the_library_s_examples_run(
    client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "library.md").read_text()
    monkeypatch.setattr(redis, "Redis", lambda **_: client)
    names: dict[str, Any] = {}
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) > 3
    for code in examples:
        exec(code, names)
    assert "b@example.com" in names["copy"]
    assert "apple" not in names["basket"]
    assert names["measured"].probes == 100_000
