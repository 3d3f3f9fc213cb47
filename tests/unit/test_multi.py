"""Operations on several filters: whose turn it is, what they are told, and how they end."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scrapy_bloom.bloom.extras.multi import MultiOperation, on, run_together, run_together_async
from scrapy_bloom.bloom.protocol.ring_store import Operation


def step(name: str) -> Operation[str]:
    """Stands for the steps of a filter; the drivers below never run it."""
    yield []
    return name


def operation(log: list[object]) -> MultiOperation[str]:
    first = yield from on(0, step("a"))
    second = yield from on(1, step("b"))
    log.append((first, second))
    return "done"


def careful(log: list[object]) -> MultiOperation[None]:
    try:
        yield from on(0, step("a"))
    except OSError as error:
        log.append((yield from on(1, step("clean"))))
        raise ValueError("said otherwise") from error


async def later(
    run: Callable[[int, Operation[Any]], Any], number: int, steps: Operation[Any]
) -> Any:
    await asyncio.sleep(0)
    return run(number, steps)


@pytest.fixture(params=["one after the other", "awaited"])
def drive(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "awaited":
        return lambda operation, run: asyncio.run(
            run_together_async(operation, lambda number, steps: later(run, number, steps))
        )
    return run_together


def test_each_filter_runs_its_own_steps_and_results_come_back(
    drive: Callable[..., Any],
) -> None:
    log: list[object] = []
    turns = []

    def run(number: int, steps: Operation[Any]) -> str:
        turns.append(number)
        return f"result of {number}"

    assert drive(operation(log), run) == "done"
    assert turns == [0, 1]
    assert log == [("result of 0", "result of 1")]


def test_an_operation_is_told_of_errors_and_may_clean_up(drive: Callable[..., Any]) -> None:
    log: list[object] = []

    def run(number: int, steps: Operation[Any]) -> str:
        if number == 0:
            raise OSError("lost")
        return "cleaned up"

    with pytest.raises(ValueError, match="said otherwise"):
        drive(careful(log), run)
    assert log == ["cleaned up"]


def test_what_an_operation_does_not_care_for_is_raised(drive: Callable[..., Any]) -> None:
    def run(number: int, steps: Operation[Any]) -> str:
        raise OSError(f"lost {number}")

    with pytest.raises(OSError, match="lost 0"):
        drive(operation([]), run)


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, SystemExit])
def test_an_operation_cleans_up_whatever_ends_it(
    drive: Callable[..., Any], error: type[BaseException]
) -> None:
    log: list[object] = []

    def whole() -> MultiOperation[None]:
        try:
            yield from on(0, step("a"))
        except BaseException:
            log.append((yield from on(1, step("clean"))))
            raise

    def run(number: int, steps: Operation[Any]) -> str:
        if number == 0:
            raise error
        return "cleaned up"

    with pytest.raises(error):
        drive(whole(), run)
    assert log == ["cleaned up"]


def test_only_what_cleans_up_is_awaited_otherwise() -> None:
    log: list[object] = []
    turns: list[str] = []

    async def run(number: int, steps: Operation[Any]) -> str:
        turns.append(f"run {number}")
        if number == 0:
            raise OSError("lost")
        return "cleaned up"

    async def clean_up(running: Any) -> Any:
        turns.append("cleaning")
        return await running

    with pytest.raises(ValueError, match="said otherwise"):
        asyncio.run(run_together_async(careful(log), run, clean_up))
    assert turns == ["run 0", "cleaning", "run 1"]
    assert log == ["cleaned up"]
