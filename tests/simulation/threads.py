"""What stands for threads in a simulated process: its background thread is a task of the world.

Nothing else knows of threads.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from scrapy_bloom.crawl import flush, lifecycle, opening
from scrapy_bloom.crawl.runtime import Runtime
from simulation.world import Task, World


class SimulatedEvent:
    """``threading.Event`` in the world's time."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float = float("inf")) -> bool:
        return self._is_set or self._world.wait(timeout, self.is_set)


class SimulatedLock:
    """``threading.Lock``, for which a task waits in the world's time."""

    def __init__(self, world: World) -> None:
        self._world, self._is_held = world, False

    def acquire(self, blocking: bool = True) -> bool:
        if self._is_held and blocking:
            self._world.wait(float("inf"), lambda: not self._is_held)
        is_free = not self._is_held
        self._is_held = True
        return is_free

    def release(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedThread:
    """``threading.Thread``, as a task of the process that starts it."""

    def __init__(self, world: World, target: Callable[[], None]) -> None:
        self._world = world
        name, process = world.process.name, world.process
        self.task: Task = world.spawn(f"{name}'s thread", target, process)

    def join(self, timeout: float) -> None:
        self._world.wait(timeout, lambda: not self._world.is_running(self.task))


@contextmanager
def simulated_threads(world: World) -> Iterator[None]:
    """Let all processes have the world's time, and tasks of the world for threads."""

    def runtime() -> Runtime:
        return Runtime(
            monotonic=lambda: world.now,
            sleep=world.wait,
            token=world.token,
            event=lambda: SimulatedEvent(world),  # type: ignore[arg-type, return-value]
            start_thread=lambda target: SimulatedThread(world, target),  # type: ignore[arg-type, return-value]
        )

    patches: list[tuple[Any, str, Any]] = [
        (lifecycle, "Runtime", runtime),
        (opening, "Runtime", runtime),
        (flush, "Lock", lambda: SimulatedLock(world)),
    ]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(mock.patch.object(*patch))
        yield
