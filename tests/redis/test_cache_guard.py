"""The recipe of docs/cache-guard.md, as it stands there: hides nothing, and spares the database."""

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
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
def make(server: Server, client: redis.Redis) -> Iterator[Callable[..., Any]]:
    """Make guards of the page's own code, each with a connection of its own."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    clients = []

    def make(**options: Any) -> Any:
        clients.append(redis.Redis.from_url(server.url, decode_responses=True))
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


def test_what_an_interrupted_rebuild_has_left_does_no_harm(
    make: Callable[..., Any], database: Database
) -> None:
    guard = make()
    guard.rebuild(database.keys)

    def fail() -> Iterator[str]:
        yield from list(database.rows)[:100]
        raise RuntimeError("the database has gone")

    with pytest.raises(RuntimeError, match="has gone"):
        guard.rebuild(fail)
    guard.put("new", database.insert)
    assert guard.get("new", database.query) == "row of new"
    assert guard.get("known 1", database.query) == "row of known 1"
    guard.rebuild(database.keys)
    assert guard.get("new", database.query) == "row of new"


def test_no_row_is_hidden_while_others_write_and_rebuild(
    make: Callable[..., Any], database: Database
) -> None:
    make().rebuild(database.keys)
    stop, hidden, errors = threading.Event(), list[str](), list[BaseException]()

    def work(action: Callable[[Any], None]) -> None:
        guard = make()
        try:
            while not stop.is_set():
                action(guard)
        except BaseException as error:
            errors.append(error)

    written: list[str] = []

    def write(guard: Any) -> None:
        key = f"new {threading.get_ident()} {len(written)}"
        guard.put(key, database.insert)
        written.append(key)

    reads = 0

    def read(guard: Any) -> None:
        nonlocal reads
        hidden.extend(key for key in written[-20:] if guard.get(key, database.query) is None)
        reads += 1

    workers = [threading.Thread(target=work, args=[one]) for one in (write, write, read)]
    for worker in workers:
        worker.start()
    guard = make()
    for _ in range(10):
        guard.rebuild(database.keys)
        before = reads
        # Who has fetched the pointer asks the old buffer before the next rebuild deletes it.
        until(lambda before=before: errors or reads > before + 1, "the reader has gone on")  # type: ignore[misc]
    stop.set()
    for worker in workers:
        worker.join()
    assert not errors
    assert not hidden
    assert len(written) > 100
    assert all(guard.get(key, database.query) for key in written)


def test_the_page_s_memory_is_what_the_plan_says() -> None:
    rows = re.findall(r"^\| ([0-9.]+) \| ([0-9.]+) MB \|", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for rate, megabytes in rows:
        planned = plan(10_000_000, float(rate), blocks=DEFAULT_BLOCKS)
        assert planned.memory / 1e6 == pytest.approx(float(megabytes), abs=0.06)
