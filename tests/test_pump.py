"""Requests come in batches, with asyncio and without, and nobody waits for what is held."""

import asyncio
import functools
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom.crawl import pump
from scrapy_bloom.crawl.basket import Decide, Fate, in_batches_without_asyncio
from scrapy_bloom.crawl.pump import Turn

#: Seconds after which what waits would wait for ever.
PATIENCE = 20.0


def in_batches(
    outputs: AsyncIterator[Any],
    size: int,
    decide: Decide,
    turn: Turn | None = None,
    *,
    is_lazy: bool = False,
) -> AsyncIterator[list[Any]]:
    """Collect outputs with a turn of their own."""
    return pump.in_batches(outputs, size, decide, turn or Turn(), is_lazy=is_lazy)


in_lazy_batches = functools.partial(in_batches, is_lazy=True)
#: Those that produce nothing ahead; all, where it makes no difference.
LAZY = pytest.mark.parametrize(
    "collect", [in_lazy_batches, in_batches_without_asyncio], ids=["lazy", "without asyncio"]
)
ALL = pytest.mark.parametrize(
    "collect",
    [in_batches, in_lazy_batches, in_batches_without_asyncio],
    ids=["ahead", "lazy", "without asyncio"],
)
Collect = Callable[..., AsyncIterator[list[Any]]]


def link(number: int = 0) -> Request:
    return Request(f"https://example.com/{number}")


def always(_: Request) -> Fate:
    return Fate.ASKED


def never(_: Request) -> Fate:
    return Fate.PASSED


def dropped(_: Request) -> Fate:
    return Fate.DROPPED


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in a loop of its own, in which no task may be left at the end."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(*args, **kwargs), PATIENCE)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(bounded())

    return run


async def produce(*outputs: Any) -> AsyncIterator[Any]:
    for output in outputs:
        if isinstance(output, BaseException):
            raise output
        yield output


async def all_of(batches: AsyncIterator[list[Any]]) -> list[list[Any]]:
    return [batch async for batch in batches]


async def flat(batches: AsyncIterator[list[Any]]) -> list[Any]:
    return [output async for batch in batches for output in batch]


async def rounds() -> None:
    """Let others go on as far as they get."""
    for _ in range(10):
        await asyncio.sleep(0)


# -- batches --


@ALL
@in_loop
async def test_no_outputs_make_no_batches(collect: Collect) -> None:
    assert await all_of(collect(produce(), 4, always)) == []


@ALL
@in_loop
async def test_requests_come_in_batches_of_the_size(collect: Collect) -> None:
    links = [link(number) for number in range(10)]
    batches = await all_of(collect(produce(*links), 4, always))
    assert batches == [links[:4], links[4:8], links[8:]]


@ALL
@in_loop
async def test_items_pass_before_requests_that_are_held(collect: Collect) -> None:
    first, second = link(1), link(2)
    outputs = produce(first, "item", second, {"item": 2})
    assert await flat(collect(outputs, 4, always)) == ["item", {"item": 2}, first, second]


@ALL
@in_loop
async def test_items_that_are_empty_or_equal_nothing_are_passed_on(collect: Collect) -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __bool__(self) -> bool:
            raise TypeError

        def __eq__(self, other: object) -> bool:
            raise TypeError

    odd = Odd()
    items = await flat(collect(produce(link(), None, {}, odd, 0), 4, always))
    assert items[:2] == [None, {}]
    assert items[2] is odd
    assert items[3] == 0


@ALL
@in_loop
async def test_requests_that_nothing_is_asked_about_are_passed_on_at_once(
    collect: Collect,
) -> None:
    links = [link(number) for number in range(3)]
    never_ends = asyncio.Event()

    async def callback() -> AsyncIterator[Any]:
        for one in links:
            yield one
        await never_ends.wait()

    batches, passed = collect(callback(), 4, never), []
    while len(passed) < len(links):
        passed += await anext(batches)
    await batches.aclose()
    assert passed == links


@ALL
@in_loop
async def test_what_is_dropped_makes_no_batch(collect: Collect) -> None:
    links = [link(number) for number in range(300)]
    assert await all_of(collect(produce(*links, "item"), 4, dropped)) == [["item"]]


@in_loop
async def test_others_have_their_turn_while_a_page_of_duplicates_is_dropped() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while turns < 3:
            turns += 1
            await asyncio.sleep(0)

    async def callback() -> AsyncIterator[Any]:
        while turns < 3:
            yield link()

    task = asyncio.ensure_future(other())
    assert await all_of(in_batches(callback(), 4, dropped)) == []
    await task


@in_loop
async def test_what_is_held_is_not_held_longer_while_duplicates_are_dropped() -> None:
    first, second = link(1), link(2)
    is_passed = False

    async def callback() -> AsyncIterator[Any]:
        yield first
        while not is_passed:
            yield second

    decide = {first: Fate.ASKED, second: Fate.DROPPED}.__getitem__
    batches = in_batches(callback(), 4, decide)
    assert await anext(batches) == [first]
    is_passed = True
    assert await all_of(batches) == []


@ALL
@in_loop
async def test_an_exception_comes_after_what_was_yielded_before(collect: Collect) -> None:
    first = link()
    batches = collect(produce(first, "item", ValueError("of the callback")), 4, always)
    assert [*await anext(batches), *await anext(batches)] == ["item", first]
    with pytest.raises(ValueError, match="of the callback"):
        await anext(batches)


@ALL
@in_loop
async def test_an_exception_of_the_decision_is_raised(collect: Collect) -> None:
    def broken(_: Request) -> Fate:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await all_of(collect(produce(link()), 4, broken))


@ALL
@in_loop
async def test_any_async_iterator_will_do(collect: Collect) -> None:
    class Countdown:
        left = 3

        def __aiter__(self) -> "Countdown":
            return self

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return f"item {self.left}"

    outputs = await flat(collect(Countdown(), 4, always))
    assert outputs == ["item 2", "item 1", "item 0"]


# -- nothing is held for long --


@in_loop
async def test_a_request_is_not_held_while_the_callback_waits_for_it() -> None:
    """Were it held, both would wait for ever."""
    first, second, was_passed_on = link(1), link(2), asyncio.Event()

    async def callback() -> AsyncIterator[Any]:
        yield first
        await was_passed_on.wait()
        yield second

    batches = []
    async for batch in in_batches(callback(), 4, always):
        batches.append(batch)
        was_passed_on.set()
    assert batches == [[first], [second]]


@in_loop
async def test_a_request_after_an_item_is_not_held_while_the_callback_waits_for_it() -> None:
    first, second, was_passed_on = link(1), link(2), asyncio.Event()

    async def callback() -> AsyncIterator[Any]:
        yield first
        yield "item"
        yield second
        yield "item"
        await was_passed_on.wait()

    found = []
    async for batch in in_batches(callback(), 4, always):
        found += batch
        if second in batch:
            was_passed_on.set()
    assert found == ["item", "item", first, second]


@in_loop
async def test_a_slow_callback_passes_on_each_request_that_it_waits_for() -> None:
    passed: asyncio.Queue[Request] = asyncio.Queue()
    links = [link(number) for number in range(3)]

    async def callback() -> AsyncIterator[Any]:
        for one in links:
            yield one
            assert await passed.get() is one

    async for batch in in_batches(callback(), 4, always):
        for one in batch:
            passed.put_nowait(one)


@in_loop
async def test_what_is_held_too_long_without_a_loop_goes_with_the_next_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scrapy_bloom.crawl.basket.HELD", 0.0)
    links = [link(number) for number in range(4)]

    async def slow() -> AsyncIterator[Any]:
        for one in links:
            yield one
            await asyncio.sleep(0.02)

    batches = await all_of(in_batches_without_asyncio(slow(), 64, always))
    assert batches == [links[:2], links[2:]]


@in_loop
async def test_what_is_held_too_long_without_a_loop_goes_after_an_item_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scrapy_bloom.crawl.basket.HELD", 0.0)
    first = link()

    async def slow() -> AsyncIterator[Any]:
        yield first
        for number in range(3):
            await asyncio.sleep(0.02)
            yield number

    assert await flat(in_batches_without_asyncio(slow(), 64, always)) == [0, first, 1, 2]


# -- produced when it is asked for --


class Counted:
    """Counts what it has been asked for."""

    def __init__(self, outputs: list[Any]) -> None:
        self.outputs, self.count = outputs, 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        for output in self.outputs:
            self.count += 1
            yield output


@ALL
@in_loop
async def test_nothing_is_produced_before_it_is_asked_for(collect: Collect) -> None:
    counted = Counted(["item"])
    batches = collect(aiter(counted), 4, always)
    await asyncio.sleep(0)
    assert counted.count == 0
    await batches.aclose()


@LAZY
@in_loop
async def test_items_are_produced_one_at_a_time(collect: Collect) -> None:
    counted = Counted(["item"] * 5)
    number = 0
    async for _ in collect(aiter(counted), 4, always):
        number += 1
        await rounds()
        assert counted.count == number


@LAZY
@in_loop
async def test_no_more_is_produced_than_fills_a_batch(collect: Collect) -> None:
    counted = Counted([link(number) for number in range(12)])
    number = 0
    async for batch in collect(aiter(counted), 4, always):
        number += len(batch)
        await rounds()
        assert counted.count == number


@in_loop
async def test_what_is_produced_ahead_is_bounded() -> None:
    """By the size, and what is held beside it."""
    counted = Counted([link(n) if n % 3 else "item" for n in range(100)])
    number = 0
    async for batch in in_batches(aiter(counted), 4, always):
        number += len(batch)
        await rounds()
        assert counted.count <= number + 2 * 4


@in_loop
async def test_nothing_is_produced_ahead_after_a_batch_that_was_late() -> None:
    """What comes while the consumer is busy waits for it; then all goes on as it was."""
    goes_on, counted, taken = asyncio.Event(), 0, 0

    async def callback() -> AsyncIterator[Any]:
        nonlocal counted
        yield link()
        await goes_on.wait()
        for number in range(5):
            counted += 1
            yield number

    async for batch in in_lazy_batches(callback(), 4, always):
        goes_on.set()
        taken += not isinstance(batch[0], Request)
        await rounds()
        assert counted <= max(taken, 1)


# -- one task, and its end --


@in_loop
async def test_all_outputs_are_produced_in_one_task() -> None:
    """Time-outs and cancel scopes belong to the task that they were opened in."""
    tasks = set()

    async def callback() -> AsyncIterator[Any]:
        for number in range(20):
            tasks.add(asyncio.current_task())
            yield link(number) if number % 3 else "item"
            tasks.add(asyncio.current_task())

    async for _ in in_batches(callback(), 4, always):
        await asyncio.sleep(0)
    assert len(tasks) == 1


@in_loop
async def test_a_time_out_that_spans_several_yields_works() -> None:
    """As asyncio.timeout and anyio's scopes do: it cancels the task that it was opened in."""
    found = []

    async def callback() -> AsyncIterator[Any]:
        task = asyncio.current_task()
        assert task is not None
        handle = asyncio.get_running_loop().call_later(0.05, task.cancel)
        try:
            yield link(1)
            yield "item"
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield "timed out"
        finally:
            handle.cancel()

    async for batch in in_batches(callback(), 4, always):
        found += batch
    assert [one for one in found if isinstance(one, str)] == ["item", "timed out"]
    assert len(found) == 3


@ALL
@pytest.mark.parametrize("first", ["item", "request"])
@in_loop
async def test_closing_closes_the_callback(collect: Collect, first: str) -> None:
    is_closed = False

    async def callback() -> AsyncIterator[Any]:
        nonlocal is_closed
        try:
            while True:
                yield link() if first == "request" else "item"
        finally:
            await asyncio.sleep(0)
            is_closed = True

    outputs = callback()
    batches = collect(outputs, 2, always)
    await anext(batches)
    await batches.aclose()
    if collect is in_batches_without_asyncio:
        await outputs.aclose()  # as for any ``async for``, whoever made it closes it
    assert is_closed


@in_loop
async def test_closing_ends_a_callback_that_is_waiting() -> None:
    is_closed = False

    async def callback() -> AsyncIterator[Any]:
        nonlocal is_closed
        try:
            yield link()
            await asyncio.Event().wait()
        finally:
            is_closed = True

    batches = in_batches(callback(), 4, always)
    await anext(batches)
    await asyncio.sleep(0)
    await batches.aclose()
    assert is_closed


@in_loop
async def test_closing_what_has_ended_does_nothing() -> None:
    batches = in_batches(produce("item"), 4, always)
    assert await all_of(batches) == [["item"]]
    await batches.aclose()
    assert await all_of(batches) == []


async def cancel_consumer(
    outputs: AsyncIterator[Any], is_waiting: asyncio.Event, *, is_lazy: bool = False
) -> None:
    """Cancel whoever takes the outputs, once the callback waits; that is raised there."""
    task = asyncio.ensure_future(all_of(in_batches(outputs, 4, always, is_lazy=is_lazy)))
    await is_waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_lazy", [False, True])
@in_loop
async def test_a_consumer_that_is_cancelled_ends_a_callback_that_goes_on_yielding(
    is_lazy: bool,
) -> None:
    is_waiting, is_closed = asyncio.Event(), False

    async def callback() -> AsyncIterator[Any]:
        nonlocal is_closed
        try:
            while True:
                is_waiting.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    yield "more"
        finally:
            is_closed = True

    await cancel_consumer(callback(), is_waiting, is_lazy=is_lazy)
    assert is_closed


@in_loop
async def test_a_consumer_that_is_cancelled_ends_the_callback() -> None:
    is_waiting, was_cancelled = asyncio.Event(), False

    async def callback() -> AsyncIterator[Any]:
        nonlocal was_cancelled
        yield "item"
        is_waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled = True
            raise

    await cancel_consumer(callback(), is_waiting)
    assert was_cancelled


@in_loop
async def test_a_consumer_that_is_cancelled_closes_a_callback_that_fails_to_stop() -> None:
    """What it raises on its way out is nobody's any more."""
    is_waiting = asyncio.Event()

    async def callback() -> AsyncIterator[Any]:
        is_waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError
        yield

    await cancel_consumer(callback(), is_waiting)


@ALL
@in_loop
async def test_a_callback_that_raises_cancelled_itself_raises_it_and_waits_for_nobody(
    collect: Collect,
) -> None:
    """Such as one that awaits a task that was cancelled."""
    batches = collect(produce("item", asyncio.CancelledError()), 4, always)
    assert await anext(batches) == ["item"]
    with pytest.raises(asyncio.CancelledError):
        await anext(batches)


@in_loop
async def test_requests_before_a_cancellation_of_its_own_are_passed_on() -> None:
    first, found = link(), []
    with suppress(asyncio.CancelledError):
        async for batch in in_batches(produce(first, asyncio.CancelledError()), 4, always):
            found += batch
    assert found == [first]


@in_loop
async def test_two_callbacks_do_not_wait_for_each_other() -> None:
    first_is_on = asyncio.Event()

    async def waiting() -> AsyncIterator[Any]:
        yield "begun"
        await first_is_on.wait()
        yield "over"

    async def waking() -> AsyncIterator[Any]:
        first_is_on.set()
        yield "woken"

    results = await asyncio.gather(
        all_of(in_batches(waiting(), 4, always)), all_of(in_batches(waking(), 4, always))
    )
    assert results == [[["begun"], ["over"]], [["woken"]]]


# -- time-outs of the callback --

needs_time_outs = pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout is new")


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn after each output."""
    monkeypatch.setattr(pump, "TURN", 0.0)
    monkeypatch.setattr(pump, "PATIENCE", 0.0)


@needs_time_outs
@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("size", [2, 64])
@in_loop
async def test_a_time_out_ends_what_the_callback_waits_for_and_not_what_waits_for_it(
    size: int,
) -> None:
    """It is up while others have their turn, or the consumer has not asked for more."""
    links = [link(number) for number in range(20)]

    async def callback() -> AsyncIterator[Any]:
        try:
            async with asyncio.timeout(0.001):
                for one in links:
                    time.sleep(0.001)
                    yield one
                await asyncio.Event().wait()
        except TimeoutError:
            yield "timed out"
        await asyncio.sleep(0)
        yield "over"

    found = []
    async for batch in in_batches(callback(), size, never):
        found += batch
        await asyncio.sleep(0.005)
    assert found == [*links, "timed out", "over"]


@needs_time_outs
@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("size", [1, 64])
@in_loop
async def test_a_time_out_that_is_left_before_anything_was_waited_for_is_none(size: int) -> None:
    async def callback() -> AsyncIterator[Any]:
        async with asyncio.timeout(0.001):
            time.sleep(0.002)
            yield "item"
        for _ in range(3):
            await asyncio.sleep(0.001)
        yield "over"

    assert await flat(in_batches(callback(), size, always)) == ["item", "over"]


@pytest.mark.usefixtures("short_turns")
@in_loop
async def test_what_cancels_the_task_while_others_have_their_turn_cancels_the_callback() -> None:
    async def callback() -> AsyncIterator[Any]:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        try:
            yield "item"
            yield "item"
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            yield f"cancelled {error}"

    found = await flat(in_batches(callback(), 64, always))
    assert found == ["item", "item", "cancelled "]


# -- turns --


@in_loop
async def test_all_callbacks_together_have_one_turn_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, produced, most, is_over = itertools.count(), 0, 0, False
    monkeypatch.setattr(pump.time, "monotonic", lambda: next(clock) * pump.TURN / 10)

    async def callback() -> AsyncIterator[Any]:
        nonlocal produced
        for number in range(100):
            produced += 1
            yield link(number)

    async def watch() -> None:
        nonlocal produced, most
        while not is_over:
            most, produced = max(most, produced), 0
            await asyncio.sleep(0)

    watching, turn = asyncio.ensure_future(watch()), Turn()
    pages = [all_of(in_batches(callback(), 4, dropped, turn)) for _ in range(5)]
    assert await asyncio.gather(*pages) == [[]] * 5
    is_over = True
    await watching
    # The first one has its turn, and each of the others an output.
    assert most <= 12 + 4


@pytest.mark.parametrize(("patience", "is_first_done"), [(20.0, True), (0.0, False)])
@in_loop
async def test_a_callback_begins_when_others_leave_it_something_or_after_a_while(
    monkeypatch: pytest.MonkeyPatch, patience: float, is_first_done: bool
) -> None:
    clock, done, found = itertools.count(), list[str](), list[bool]()
    monkeypatch.setattr(pump.time, "monotonic", lambda: next(clock) * pump.TURN / 10)
    monkeypatch.setattr(pump, "PATIENCE", patience)

    async def first() -> AsyncIterator[Any]:
        for number in range(100):
            yield link(number)
        done.append("first")

    async def second() -> AsyncIterator[Any]:
        found.append(bool(done))
        yield link()

    turn = Turn()
    pages = [all_of(in_batches(page(), 4, dropped, turn)) for page in (first, second)]
    await asyncio.gather(*pages)
    assert found == [is_first_done]
