"""The clock that other tests rely on: a real server's, moved."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
import redis
from support.clock import MOVED_TO, MovedServer
from support.polling import until

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


def test_a_test_begins_at_a_fixed_time_with_an_empty_database(
    moved: MovedServer, client: redis.Redis
) -> None:
    assert client.dbsize() == 0
    assert timedelta() <= shown(moved) - MOVED_TO < timedelta(seconds=SOON)


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


def test_the_day_after_28_february_2028_is_a_leap_day(moved: MovedServer) -> None:
    moved.set_time(at(2028, 2, 28, 12))
    moved.move(DAY)
    assert shown(moved).date() == at(2028, 2, 29).date()
    moved.move(DAY)
    assert shown(moved).date() == at(2028, 3, 1).date()


def test_any_time_zone_will_do_but_one_there_must_be(moved: MovedServer) -> None:
    tokyo = timezone(timedelta(hours=9))
    moved.set_time(datetime(2028, 3, 1, 8, 59, tzinfo=tokyo))
    assert shown(moved).date() == at(2028, 2, 29).date()
    with pytest.raises(ValueError, match="no time zone"):
        moved.set_time(datetime(2028, 3, 1))  # noqa: DTZ001 - the point


def test_the_time_zone_of_the_machine_does_not_matter(moved: MovedServer) -> None:
    for zone in ("Asia/Kathmandu", "America/New_York"):
        with MovedServer(moved.binary, env={"TZ": zone}) as server:
            server.set_time(MOVED_TO)
            assert timedelta() <= shown(server) - MOVED_TO < timedelta(seconds=SOON)


def test_time_runs_on_after_a_move(moved: MovedServer) -> None:
    before, real = moved.now(), time.time()
    time.sleep(0.3)
    after, later = moved.now(), time.time()
    assert after - before == pytest.approx(later - real, abs=0.25)


def test_moves_add_up_and_do_not_drift(moved: MovedServer) -> None:
    start, real = moved.now(), time.time()
    for _ in range(100):
        moved.move(DAY)
        moved.move(-DAY / 2)
    passed = moved.now() - start - (time.time() - real)
    assert passed == pytest.approx(50 * DAY, abs=0.25)


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


def test_the_server_clears_expired_keys_away_by_itself(
    moved: MovedServer, client: redis.Redis
) -> None:
    for key in range(100):
        client.set(str(key), "v", ex=DAY)
    moved.move(2 * DAY)
    until(lambda: client.dbsize() == 0, "the keys expire")


def test_moved_back_a_key_lives_longer(moved: MovedServer, client: redis.Redis) -> None:
    client.set("k", "v", ex=DAY)
    moved.move(-7 * DAY)
    assert 8 * DAY - SOON < client.pttl("k") / 1000 <= 8 * DAY
    moved.move(8 * DAY + 1)
    assert client.exists("k") == 0


def test_moved_back_the_server_keeps_its_own_pace(moved: MovedServer, client: redis.Redis) -> None:
    """Its timers run on: keys that expire in a moment are cleared away in a moment."""
    moved.move(-365 * DAY)
    client.set("k", "v", px=50)
    until(lambda: client.dbsize() == 0, "the keys expire")


def test_a_restarted_server_stays_where_it_was_moved_to(moved: MovedServer) -> None:
    with MovedServer(moved.binary) as server:
        server.set_time(at(2028, 2, 29))
        server.kill()
        server.start()
        assert shown(server).date() == at(2028, 2, 29).date()
        server.move(DAY)
        assert shown(server).date() == at(2028, 3, 1).date()


def test_only_its_own_server_is_moved(moved: MovedServer) -> None:
    assert "MOVED_CLOCK" not in os.environ
    with MovedServer(moved.binary) as other:
        assert abs(other.now() - time.time()) < SOON
        moved.move(DAY)
        assert abs(other.now() - time.time()) < SOON


def test_a_clock_that_does_not_move_is_an_error(
    moved: MovedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.clock.MOVE_TIMEOUT", 0.05)
    monkeypatch.setattr(moved, "now", lambda: 0.0)
    with pytest.raises(RuntimeError, match="does not move"):
        moved.move(DAY)
