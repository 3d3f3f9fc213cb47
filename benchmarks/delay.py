"""``python -m benchmarks.delay``: a proxy that puts a server some milliseconds away.

What comes from either side is passed on half a round trip later, in order, whatever else is under
way meanwhile: a pipeline takes as long as one command. Bandwidth is not limited.
"""

import argparse
import asyncio
import contextlib
import ctypes
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterator

#: Bytes read at once.
CHUNK = 262_144
#: What passing something on takes by itself, in seconds, each way: it is left out of the delay.
OVERHEAD = 60e-6
PR_SET_TIMERSLACK = 29


@contextlib.contextmanager
def delayed(port: int, milliseconds: float) -> Iterator[int]:
    """Start a proxy to a port of this machine in a process of its own; give the port it is at."""
    command = [sys.executable, "-u", "-m", "benchmarks.delay"]
    command += ["--to", f"127.0.0.1:{port}", "--ms", str(milliseconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


class _Way:
    """One direction of a connection."""

    def __init__(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        self.source, self.sink = source, sink
        self._waiting: deque[bytes] = deque()

    async def run(self, seconds: float) -> None:
        """Pass everything on, each chunk so many seconds after it came."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await self.source.read(CHUNK):
                self._waiting.append(data)
                loop.call_at(loop.time() + seconds, self._pass_on)
        await asyncio.sleep(seconds)  # what is under way arrives before the end does
        self.sink.close()

    def _pass_on(self) -> None:
        # A queue, since timers of the same time fire in any order.
        self.sink.write(self._waiting.popleft())


async def serve(host: str, port: int, milliseconds: float) -> None:
    """Listen on a free port, print it, and pass on what comes until the process is ended."""
    seconds = max(milliseconds / 2e3 - OVERHEAD, 0.0)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, port)
        ways = _Way(reader, far_writer), _Way(far_reader, writer)
        await asyncio.gather(*(way.run(seconds) for way in ways))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)  # asyncio sets TCP_NODELAY
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def exact_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timers are good to some microseconds.

    epoll's timeout is in milliseconds, rounded up; select's is not, and there are few sockets here.
    """
    if sys.platform == "linux":  # timers may otherwise be 50 us late
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delay", description=__doc__)
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="the server")
    parser.add_argument("--ms", type=float, default=1.0, help="milliseconds of a round trip")
    options = parser.parse_args()
    host, _, port = options.to.rpartition(":")
    with contextlib.suppress(KeyboardInterrupt):
        exact_loop().run_until_complete(serve(host, int(port), options.ms))


if __name__ == "__main__":
    main()
