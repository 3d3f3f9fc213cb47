"""``python -m benchmarks.site``: sites to crawl, served from memory by a process of their own.

Two kinds: a generated one that is all links, and a directory of real HTML, the documentation of
Python as Debian packages it.
"""

import argparse
import asyncio
import contextlib
import mimetypes
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

#: The generated site, unless told otherwise.
PAGES, LINKS, SEED = 800, 30, 7
#: Links of each page to pages that no other page needs to link to: all are reachable.
BRANCHES = 5
#: Debian's package of the documentation depends on the one that has the files.
DOCS_PACKAGE = "python3-doc"
DOCS_INSTALLED = Path("/usr/share/doc")
DOCS_PATTERN = "python3.*/html"
#: Where the documentation is unpacked if it is not installed; git ignores it.
CACHE = Path(__file__).parents[1] / ".scrapy" / "benchmarks"
TEXT = "The quick brown fox jumps over the lazy dog, and nobody has asked it why it does so. " * 2


class NoDocumentationError(Exception):
    """The documentation is not on this machine, and cannot be had."""


@contextlib.contextmanager
def served(*arguments: str) -> Iterator[str]:
    """Serve a site in a process of its own; give its URL."""
    command = [sys.executable, "-u", "-m", "benchmarks.site", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        finally:
            process.terminate()


def path_of(page: int) -> str:
    """Return where a page of the generated site is."""
    return f"/catalogue/{page % 97}/product-{page}.html" if page else "/"


def generate(pages: int, links: int, seed: int) -> dict[str, bytes]:
    """Return a site in which each page has so many links: path -> HTML."""
    targets = enumerate(linked_pages(pages, links, seed))
    return {path_of(page): _html(page, linked) for page, linked in targets}


def linked_pages(pages: int, links: int, seed: int) -> Iterator[list[int]]:
    """Yield the numbers of the pages that page 0, 1, ... links to.

    Page N links to 5N + 1, ..., 5N + 5, if there are such pages; its other links are random.
    """
    rng = random.Random(seed)
    for page in range(pages):
        targets = list(range(page * BRANCHES + 1, min((page + 1) * BRANCHES + 1, pages)))
        targets += [rng.randrange(pages) for _ in range(links - len(targets))]
        rng.shuffle(targets)
        yield targets


def _html(page: int, targets: list[int]) -> bytes:
    links = (f'<p>{TEXT}<a href="{path_of(target)}">Product {target}</a></p>' for target in targets)
    head = f"<!DOCTYPE html><html><head><title>Product {page}</title></head><body>"
    return "\n".join([head, *links, "</body></html>"]).encode()


def documentation() -> Path:
    """Return the directory of Python's documentation; download its package if it is missing.

    Raises:
        NoDocumentationError: there is none, for the reason given.
    """
    unpacked = CACHE / "documentation"
    for directory in (DOCS_INSTALLED, unpacked / DOCS_INSTALLED.relative_to("/")):
        found = sorted(directory.glob(f"{DOCS_PATTERN}/index.html"))
        if found:
            return found[-1].parent.resolve()
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NoDocumentationError(f"Debian's package {DOCS_PACKAGE} can be had on Debian only")
    try:
        _unpack(unpacked)
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        said = getattr(error, "stderr", "") or repr(error)
        raise NoDocumentationError(f"{DOCS_PACKAGE} cannot be downloaded: {said.strip()}") from None
    return documentation()


def _unpack(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    depends = _run(directory, "apt-cache", "depends", DOCS_PACKAGE)
    package = next(line.split()[1] for line in depends.splitlines() if "Depends: python3." in line)
    _run(directory, "apt-get", "download", package)
    file = next(directory.glob(f"{package}_*.deb"))
    _run(directory, "dpkg-deb", "-x", str(file), ".")
    file.unlink()
    if not any(directory.glob(f"usr/share/doc/{DOCS_PATTERN}/index.html")):
        raise NoDocumentationError(f"{package} does not contain the documentation as HTML")


def _run(directory: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout


class _Connection(asyncio.Protocol):
    """Answers GET requests on a connection that is kept alive, in their order."""

    def __init__(self, answer: Callable[[str], bytes]) -> None:
        self._answer = answer
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._read = (self._read + data).split(b"\r\n\r\n")
        for request in requests:
            target = request.split(b" ", 2)[1].decode("ascii")
            self._transport.write(self._answer(target.partition("?")[0]))


def from_pages(pages: dict[str, bytes]) -> Callable[[str], bytes]:
    """Return what answers with generated pages."""
    responses = {path: response("text/html; charset=utf-8", body) for path, body in pages.items()}
    missing = response("text/plain", b"", status="404 Not Found")
    return lambda path: responses.get(path, missing)


def from_directory(directory: Path) -> Callable[[str], bytes]:
    """Return what answers with the files of a directory, all of which are read at once."""
    responses = {}
    for file in directory.rglob("*"):
        if file.is_file():
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            path = f"/{file.relative_to(directory).as_posix()}"
            responses[path] = response(kind, file.read_bytes())
    for path in [path for path in responses if path.endswith("/index.html")]:
        responses[path.removesuffix("index.html")] = responses[path]
    missing = response("text/plain", b"", status="404 Not Found")
    return lambda path: responses.get(path, missing)


def response(kind: str, body: bytes, *, status: str = "200 OK") -> bytes:
    """Return an HTTP response as it is sent."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def serve(answer: Callable[[str], bytes]) -> None:
    """Listen on a free port, print it, and answer until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(answer), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site", description=__doc__)
    parser.add_argument(
        "--directory", type=Path, help="serve its files instead of a generated site"
    )
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--links", type=int, default=LINKS, help="of each page")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    if options.directory:
        answer = from_directory(options.directory)
    else:
        answer = from_pages(generate(options.pages, options.links, options.seed))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(answer))


if __name__ == "__main__":
    main()
