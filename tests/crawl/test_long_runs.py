"""A run that goes on across rotations: what the process knows of URLs ends with their windows."""

from typing import Any

import pytest
from support.clock import FrozenServer
from support.loops import eventually, in_loop
from support.outages import struck
from support.proxy import Fault, Kind, Proxy
from support.workers import Worker, confirm, look_up, recorded

HOUR, SECONDS = 3_600, 4


@pytest.fixture
def frozen(frozen_server: FrozenServer) -> FrozenServer:
    """It's empty, and the window of an hour is over in some seconds."""
    with frozen_server.client() as client:
        client.flushall()
    frozen_server.set_time(500_000 * HOUR - SECONDS)
    return frozen_server


@in_loop
async def test_what_a_process_knows_is_new_again_after_the_rotation(frozen: FrozenServer) -> None:
    """What it has crawled, what others have, and what it found in an outage."""
    own, others, late = 0, 1, 2
    window: dict[str, Any] = {"BLOOM_RECRAWL_AFTER": "1 hour", "BLOOM_ROTATE_EVERY": "1 hour"}
    with Proxy(frozen.port) as proxy:
        async with Worker(frozen.url, **window) as other, Worker(proxy.url, **window) as worker:
            assert not other.sees(others)
            confirm(other, others)
            assert not worker.sees(own)
            confirm(worker, own)
            await eventually(lambda: recorded(frozen) == 2)
            with struck(proxy, Fault(Kind.RESET_REQUEST)):
                assert not worker.sees(late)
                assert worker.sees(late)
            await worker.found_again()
            confirm(worker, late)
            await eventually(lambda: recorded(frozen) == 3)
            pages = {own, others, late}
            assert await look_up(worker, pages) == pages
            frozen.move(SECONDS)
            await eventually(lambda: not any(map(worker.sees, pages)))
