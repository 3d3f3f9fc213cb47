"""How far a reader has to go: files, and calls between them, on the way of one new URL."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis
from support.loops import in_loop
from support.servers import Server
from support.workers import Worker, page

import scrapy_bloom

PACKAGE = str(Path(scrapy_bloom.__file__).parent)


def profile(function: Callable[[], object]) -> tuple[set[str], int]:
    """Return the files of the package that a call passes, and its calls from file to file."""
    files, hops = set[str](), 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal hops
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(PACKAGE):
            return
        files.add(name)
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        hops += caller.startswith(PACKAGE) and caller != name

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return files, hops


@pytest.mark.parametrize(("remember", "files", "hops"), [("scheduled", 9, 14), ("crawled", 12, 20)])
@in_loop
async def test_one_new_url_passes_few_files(
    server: Server, client: redis.Redis, remember: str, files: int, hops: int
) -> None:
    async with Worker(server.url, BLOOM_REMEMBER=remember) as worker:
        for number in range(200):  # the first one of a block computes what its calls have in common
            worker.dupefilter.request_seen(page(number))
        # The garbage collector may run anything in between.
        new = [page(number) for number in range(200, 205)]
        found = [profile(partial(worker.dupefilter.request_seen, one)) for one in new]
        passed, calls = min(found, key=lambda one: (len(one[0]), one[1]))
    assert len(passed) <= files, sorted(passed)
    assert calls <= hops
