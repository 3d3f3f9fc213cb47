"""The clock that other tests rely on: a real server's, moved."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import redis
from support.clock import MOVED_TO, MovedServer

pytestmark = pytest.mark.each_server

DAY = 86_400
#: More than any answer takes, and far less than any move.
SOON = 5.0


@pytest.fixture
def client(moved: MovedServer) -> Iterator[redis.Redis]:
    with moved.client() as client:
        yield client


def at(year: int, month: int, day: int, *rest: int) -> datetime:
    return datetime(year, month, day, *rest, tzinfo=UTC)


def shown(server: MovedServer) -> datetime:
    return datetime.fromtimestamp(server.now(), UTC)


@pytest.mark.parametrize(
    "when",
    [at(2028, 2, 29), at(2028, 12, 31, 23, 59, 50), at(2001, 9, 9), at(2099, 7, 1, 12, 30)],
    ids=str,
)
def test_the_time_is_what_it_was_set_to(moved: MovedServer, when: datetime) -> None:
    moved.set_time(when)
    assert timedelta() <= shown(moved) - when < timedelta(seconds=SOON)
    moved.set_time(when.timestamp())
    assert timedelta() <= shown(moved) - when < timedelta(seconds=SOON)


def test_scripts_see_the_moved_time(moved: MovedServer, client: redis.Redis) -> None:
    moved.set_time(at(2028, 2, 29))
    seconds = int(client.eval("return redis.call('TIME')[1]", 0))
    assert 0 <= seconds - at(2028, 2, 29).timestamp() < SOON


def test_a_key_expires_when_its_moment_is_passed(moved: MovedServer, client: redis.Redis) -> None:
    client.set("k", "v")
    client.expireat("k", MOVED_TO + timedelta(days=1))
    moved.move(DAY - 60)
    assert client.get("k") == b"v"
    moved.move(120)
    assert client.get("k") is None


def test_moved_back_a_key_lives_longer(moved: MovedServer, client: redis.Redis) -> None:
    client.set("k", "v", ex=DAY)
    moved.move(-7 * DAY)
    assert 8 * DAY - SOON < client.pttl("k") / 1000 <= 8 * DAY
    moved.move(8 * DAY + 1)
    assert client.exists("k") == 0


def test_a_restarted_server_stays_where_it_was_moved_to(moved: MovedServer) -> None:
    with MovedServer(moved.binary) as server:
        server.set_time(at(2028, 2, 29))
        server.kill()
        server.start()
        assert shown(server).date() == at(2028, 2, 29).date()
        server.move(DAY)
        assert shown(server).date() == at(2028, 3, 1).date()


def test_a_clock_that_does_not_move_is_an_error(
    moved: MovedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.clock.MOVE_TIMEOUT", 0.05)
    monkeypatch.setattr(moved, "now", lambda: 0.0)
    with pytest.raises(RuntimeError, match="does not move"):
        moved.move(DAY)
