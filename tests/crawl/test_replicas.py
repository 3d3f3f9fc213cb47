"""BLOOM_WAIT_REPLICAS: the claims on a page's links are on replicas before the page is recorded."""

from collections.abc import Iterator

import pytest
from support.loops import eventually, in_loop
from support.outages import stalled
from support.replicas import with_replica
from support.servers import Server
from support.workers import Worker, claimed, confirm, recorded

TEXT = "so the page is remembered without them"


@pytest.fixture
def pair(any_binary: str) -> Iterator[tuple[Server, Server]]:
    """A server and its replica."""
    with with_replica(any_binary) as pair:
        yield pair


def waiting(server: Server, replicas: int = 1, **settings: object) -> Worker:
    return Worker(server.url, BLOOM_WAIT_REPLICAS=replicas, **settings)


def crawl(worker: Worker, *numbers: int) -> None:
    """Claim pages and queue that they are crawled."""
    assert not any(worker.sees(number) for number in numbers)
    confirm(worker, *numbers)


@in_loop
async def test_pages_wait_for_replicas_and_late_ones_do_not_hold_up_the_crawl(
    pair: tuple[Server, Server], caplog: pytest.LogCaptureFixture
) -> None:
    primary, replica = pair
    async with waiting(primary, BLOOM_TIMEOUT=6) as worker:
        with stalled(replica), primary.client() as client:
            crawl(worker, *range(6))
            await eventually(lambda: client.info("clients")["blocked_clients"], "it waits")
            assert recorded(primary) == 0
            assert worker.sees(0)
            await eventually(lambda: worker.stat("unreplicated") == 6)
        await eventually(lambda: recorded(primary) == 6)
        assert claimed(primary) == 0
        assert caplog.text.count(TEXT) == 1
        assert "a primary had 0 of 1 replicas in time" in caplog.text
        assert worker.stat("outages") == 0

        async def is_noticed(number: int) -> bool:
            before = worker.stat("unreplicated")
            crawl(worker, number)
            await eventually(lambda: recorded(primary) == number + 1)
            await eventually(lambda: not worker.ops)
            return worker.stat("unreplicated") == before

        noticed = [await is_noticed(number) for number in range(6, 30)]
        assert noticed[-1]  # that it is back


@in_loop
async def test_pages_are_remembered_although_a_replica_is_missing(
    pair: tuple[Server, Server], caplog: pytest.LogCaptureFixture
) -> None:
    primary, replica = pair
    async with waiting(primary, replicas=2) as worker:
        crawl(worker, 0, 1, 2)
        await eventually(lambda: recorded(primary) == 3)
        assert worker.stat("unreplicated") == 3
        assert worker.stat("outages") == 0
        await eventually(lambda: recorded(replica) == 3)
    assert caplog.text.count(TEXT) == 1
    assert "a primary had 1 of 2 replicas in time" in caplog.text


@in_loop
async def test_a_user_who_may_not_wait_is_told_so(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with own_server.client() as client:
        client.execute_command(*["ACL", "SETUSER", "hasty", "on", ">s", "~*", "+@all", "-wait"])
    params = {"username": "hasty", "password": "s"}
    async with waiting(own_server, BLOOM_REDIS_PARAMS=params) as worker:
        crawl(worker, 1, 2)
        await eventually(lambda: worker.stat("unreplicated") == 2)
        assert worker.stat("outages") == 0
    assert caplog.text.count(TEXT) == 1
    assert "has no permissions to run the 'wait' command" in caplog.text
    assert recorded(own_server) == 2
