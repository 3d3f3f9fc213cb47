"""``python -m benchmarks.delay``: a proxy that puts a server some milliseconds away.

What comes from either side is passed on half a round trip later, in order, whatever else is under
way meanwhile, so a pipeline takes as long as one command. Bandwidth isn't limited.
"""

import asyncio
import contextlib
import ctypes
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterator

#: Bytes read at a time.
CHUNK = 262_144
#: Seconds that passing something on takes by itself, each way. They're left out of the delay.
OVERHEAD = 60e-6
PR_SET_TIMERSLACK = 29


@contextlib.contextmanager
def delayed(port: int, milliseconds: float) -> Iterator[int]:
    """Start a proxy to a port of this machine in a separate process; give the proxy's port."""
    command = [sys.executable, "-u", "-m", "benchmarks.delay", str(port), str(milliseconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


async def _pass_on(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, seconds: float
) -> None:
    """Pass everything on in one direction, each chunk so many seconds after it came."""
    loop = asyncio.get_running_loop()
    # A queue, because timers of the same time fire in any order.
    waiting: deque[bytes] = deque()
    with contextlib.suppress(ConnectionError):
        while data := await source.read(CHUNK):
            waiting.append(data)
            loop.call_at(loop.time() + seconds, lambda: sink.write(waiting.popleft()))
    await asyncio.sleep(seconds)  # what is under way arrives before the end does
    sink.close()


async def serve(port: int, milliseconds: float) -> None:
    """Listen on a free port, print it, and pass on what comes until the process is ended."""
    seconds = max(milliseconds / 2e3 - OVERHEAD, 0.0)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        ways = _pass_on(reader, far_writer, seconds), _pass_on(far_reader, writer, seconds)
        await asyncio.gather(*ways)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)  # asyncio sets TCP_NODELAY
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def exact_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timers are exact to some microseconds.

    The timeout of epoll is rounded up to a millisecond, that of select isn't.
    """
    if sys.platform == "linux":  # timers may otherwise be 50 us late
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        exact_loop().run_until_complete(serve(int(sys.argv[1]), float(sys.argv[2])))
