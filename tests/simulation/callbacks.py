"""Callbacks of a simulated spider, in all forms that Scrapy knows."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from scrapy.http import Response

from simulation.site import Site
from simulation.world import World

#: Seconds that a callback waits before an output, and that its own time-out lasts.
WAITS, TIMEOUTS = (0.0, 0.0, 0.0, 0.01, 0.5), (0.005, 0.3)
#: Seconds for which it blocks.
BLOCKED = (30.0, 200.0)

Note = Callable[[Any], Any]


def call(
    world: World, site: Site, response: Response, callback: Callable[..., Any], note: Note
) -> Iterable[Any] | AsyncIterator[Any]:
    """Return what a page's callback returns.

    Args:
        world: chooses the callback's form.
        site: knows what it yields.
        response: the page.
        callback: of the requests that it yields.
        note: is called with each output when it is yielded, and returns it.
    """
    outputs: list[Any] = [*site.parse(response, callback)]
    if site.has_item(response):
        outputs.insert(world.rng.randint(0, len(outputs)), {"url": response.url})
    if site.stumbles(response):
        return _Stumbling(outputs, world.rng.randint(0, len(outputs)), note)
    form = world.rng.choice((_yield_all, _yield_all, _wait_and_yield, _wait_in_time))
    return form(world, outputs, note)


def _yield_all(world: World, outputs: Iterable[Any], note: Note) -> Iterator[Any]:
    for output in outputs:
        _block(world)
        yield note(output)


async def _wait_and_yield(world: World, outputs: Iterable[Any], note: Note) -> AsyncIterator[Any]:
    for output in outputs:
        if seconds := world.rng.choice(WAITS):
            await asyncio.sleep(seconds)
        _block(world)
        yield note(output)


async def _wait_in_time(world: World, outputs: list[Any], note: Note) -> AsyncIterator[Any]:
    """Give up waiting after some time, which may end between two outputs, and go on."""
    left = outputs[::-1]
    try:
        async with asyncio.timeout(world.rng.choice(TIMEOUTS)):
            while left:
                await asyncio.sleep(world.rng.choice(WAITS))
                yield note(left.pop())
    except TimeoutError:
        pass
    while left:
        yield note(left.pop())


def _block(world: World) -> None:
    if world.strikes("block"):
        world.log(f"{world.process.name}: BLOCKS")
        world.hold(world.process, world.rng.choice(BLOCKED))


class _Stumbling:
    """Raises before one of its outputs, and goes on, as an iterator of a middleware's may."""

    def __init__(self, outputs: list[Any], before: int, note: Note) -> None:
        for output in outputs:
            note(output)  # now: those after the exception count, too
        self._left = [*outputs[:before], None, *outputs[before:]]

    def __iter__(self) -> "_Stumbling":
        return self

    def __next__(self) -> Any:
        if not self._left:
            raise StopIteration
        if (output := self._left.pop(0)) is None:
            raise ValueError("there is no price")
        return output
