"""``python -m benchmarks.site``: a site to crawl, served from memory by a process of its own.

Each page has the same number of links, and ``/hits`` tells as JSON how often each was fetched.
With ``--directory``, the pages are the HTML files in it; ``/paths`` tells which pages there are.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

#: Links of each page to pages that no other page needs to link to, so that all can be reached.
BRANCHES = 5
SEED = 7
HITS, PATHS = "/hits", "/paths"
TEXT = "The quick brown fox jumps over the lazy dog, and nobody has asked it why it does so. " * 2


@contextlib.contextmanager
def served(*options: str) -> Iterator[str]:
    """Serve a site in a separate process; give its URL."""
    command = [sys.executable, "-u", "-m", "benchmarks.site", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        finally:
            process.terminate()


def paths(site: str) -> list[str]:
    """Return the paths of a site's pages."""
    with urlopen(site.rstrip("/") + PATHS) as response:
        found: list[str] = json.load(response)
    return found


def read(directory: Path) -> dict[str, bytes]:
    """Return a site of the HTML files in a directory."""
    files = sorted(directory.rglob("*.html"))
    return {f"/{file.relative_to(directory)}": file.read_bytes() for file in files}


def generate(pages: int, links: int) -> dict[str, bytes]:
    """Return a site in which page N links to 5N + 1, ..., 5N + 5, and to random others."""
    rng = random.Random(SEED)
    site = {}
    for page in range(pages):
        targets = list(range(page * BRANCHES + 1, min((page + 1) * BRANCHES + 1, pages)))
        targets += [rng.randrange(pages) for _ in range(links - len(targets))]
        rng.shuffle(targets)
        site[_path(page)] = _html(page, targets)
    return site


def _path(page: int) -> str:
    return f"/catalogue/{page % 97}/product-{page}.html" if page else "/"


def _html(page: int, targets: list[int]) -> bytes:
    links = (f'<p>{TEXT}<a href="{_path(target)}">Product {target}</a></p>' for target in targets)
    head = f"<!DOCTYPE html><html><head><title>Product {page}</title></head><body>"
    return "\n".join([head, *links, "</body></html>"]).encode()


class _Connection(asyncio.Protocol):
    """Answers GET requests on a connection that is kept alive, in their order."""

    def __init__(self, site: dict[str, bytes], hits: Counter[str]) -> None:
        self._site, self._hits = site, hits
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._read = (self._read + data).split(b"\r\n\r\n")
        for request in requests:
            path = request.split(b" ", 2)[1].decode("ascii")
            self._transport.write(self._answer(path))

    def _answer(self, path: str) -> bytes:
        if path == HITS:
            return _response(json.dumps(self._hits).encode())
        if path == PATHS:
            return _response(json.dumps([*self._site]).encode())
        self._hits[path] += 1
        body = self._site.get(path)
        return _response(body) if body else _response(b"", "404 Not Found")


def _response(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def serve(site: dict[str, bytes]) -> None:
    """Listen on a free port, print it, and answer until the process is ended."""
    hits: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(site, hits), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site", description=__doc__)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--pages", type=int)
    parser.add_argument("--links", type=int, help="of each page")
    options = parser.parse_args()
    site = options.directory and read(options.directory)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(site or generate(options.pages, options.links)))


if __name__ == "__main__":
    main()
