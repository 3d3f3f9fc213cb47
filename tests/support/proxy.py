"""A proxy between a client and a server that does to their connection what networks do."""

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Self

from support.servers import free_port


class Kind(Enum):
    """What is done to a request or its reply."""

    PASS = auto()
    DROP_REQUEST = auto()  # never reaches the server
    DROP_REPLY = auto()  # the server does what it was asked, the client hears nothing
    DELAY = auto()  # the reply comes after some seconds
    HALF = auto()  # of the reply only the first half comes
    RESET_REQUEST = auto()  # RST to the client, the server has got nothing
    RESET_REPLY = auto()  # RST to the client instead of the reply
    HANG = auto()  # nothing is read from the client any more


@dataclass(frozen=True)
class Fault:
    """A fault, and when it strikes.

    Attributes:
        kind: what happens.
        seconds: of DELAY.
        times: requests that it strikes before all is well again; None for all.
        probability: of each request to be struck.
    """

    kind: Kind
    seconds: float = 0.0
    times: int | None = None
    probability: float = 1.0


PASS = Fault(Kind.PASS)


class Proxy:
    """Listens on 127.0.0.1 and passes everything on to a port there, with the fault that is set.

    A request is what a client sends before it gets something back: a command or a pipeline, TLS
    or not. A fault that is set holds for the requests that begin from then on, whichever
    connection they come on. A replica's connection has none once the primary's writes come on it:
    bytes do not get lost in the middle of a connection.

    Args:
        server_port: where the server listens.
        path: of a unix socket to listen on instead.

    Attributes:
        struck: requests that a fault has struck.
    """

    def __init__(self, server_port: int, *, path: Path | None = None) -> None:
        self.server_port = server_port
        self.path = path
        self.port = 0 if path else free_port()
        self.struck, self._fault = 0, PASS
        self._left: int | None = None
        self._dice = random.Random(0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._wait(self._listen())

    @property
    def url(self) -> str:
        return f"unix://{self.path}" if self.path else f"redis://127.0.0.1:{self.port}/0"

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._wait(self._switch(fault))

    def close(self) -> None:
        self._wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- in the thread --

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        future: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.result(timeout=10)

    async def _listen(self) -> None:
        if self.path:
            self.path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._accept, self.path)
        else:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _switch(self, fault: Fault) -> None:
        self._fault, self._left = fault, fault.times

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # the transports close in the next rounds of the loop

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(_Link(self, reader, writer).run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def next_fault(self) -> Fault:
        """Decide what befalls a request, and count it."""
        fault = self._fault
        if fault == PASS or self._left == 0 or self._dice.random() >= fault.probability:
            return PASS
        self.struck += 1
        if self._left is not None:
            self._left -= 1
        return fault


class _Link:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.proxy = proxy
        self.reader = reader
        self.writer = writer
        self.fault = PASS
        self.fresh = True  # whether the next bytes of the client begin a request
        self.is_replica = False

    async def run(self) -> None:
        writers = [self.writer]
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.server_port)
            writers.append(writer)
            ways = [asyncio.ensure_future(way) for way in (self._up(writer), self._down(reader))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:  # the server is down
            pass
        finally:
            for writer in writers:
                writer.transport.abort()

    async def _up(self, server: asyncio.StreamWriter) -> None:
        while data := await self.reader.read(65_536):
            self.is_replica = self.is_replica or b"PSYNC" in data
            if self.fresh:
                self.fault = PASS if self.is_replica else self.proxy.next_fault()
                self.fresh = False
            kind = self.fault.kind
            if kind == Kind.HANG:
                await asyncio.Event().wait()
            if kind == Kind.RESET_REQUEST:
                self._reset()
                return
            if kind != Kind.DROP_REQUEST:
                server.write(data)
                await server.drain()

    async def _down(self, server: asyncio.StreamReader) -> None:
        while data := await server.read(65_536):
            begins, self.fresh = not self.fresh, True
            fault = self.fault
            if fault.kind == Kind.RESET_REPLY:
                self._reset()
                return
            if fault.kind == Kind.DROP_REPLY:
                continue
            if fault.kind == Kind.HALF:
                data = data[: len(data) // 2] if begins else b""
            if fault.kind == Kind.DELAY and begins:
                await asyncio.sleep(fault.seconds)
            self.writer.write(data)
            await self.writer.drain()

    def _reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
