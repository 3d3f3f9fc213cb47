"""Serve the magazine on this machine, and count what is fetched."""

import json
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs

from example_site import pages, urls
from example_site.build import SITE_URL, STATE

_TYPES = {".html": "text/html; charset=utf-8", ".txt": "text/plain", ".xml": "application/xml"}


class SiteServer(ThreadingHTTPServer):
    """The magazine's web server; `serve` starts and ends it.

    Attributes:
        url: Where the site is: `http://127.0.0.1:port`, unless it listens elsewhere.
    """

    # Threads are joined at the end, so that none outlives the server with a socket in its hands.
    daemon_threads = False
    # Several crawlers may connect at once, each with all its connections.
    request_queue_size = 128

    def __init__(self, directory: Path, port: int, host: str = "127.0.0.1") -> None:
        super().__init__((host, port), _Handler)
        self.directory = directory
        self.redirects = json.loads((directory / STATE).read_text())["redirects"]
        self.url = f"http://{host}:{self.server_port}"
        self._hits: Counter[str] = Counter()
        self._lock = Lock()
        self._connections: set[socket.socket] = set()

    def hits(self) -> Counter[str]:
        """How often each URL was fetched since the start, by canonical path and query."""
        with self._lock:
            return self._hits.copy()

    def count(self, url: str) -> None:
        """Note that a URL was fetched."""
        with self._lock:
            self._hits[url] += 1

    def close(self) -> None:
        """Stop serving, and end the connections that clients keep open for a next request."""
        self.shutdown()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):  # The client was quicker.
                    connection.shutdown(socket.SHUT_RD)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, but not that a crawler was killed in the middle of a page."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve(directory: Path, port: int = 0, host: str = "127.0.0.1") -> Iterator[SiteServer]:
    """Serve a built site from a thread of this process.

    Args:
        directory: The site's; stories published into it show at once.
        port: TCP port; 0 takes a free one.
        host: Address to listen on; 0.0.0.0 is all of the machine's.

    Raises:
        OSError: The port is taken.
    """
    server = SiteServer(directory, port, host)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: SiteServer
    protocol_version = "HTTP/1.1"
    # One segment for head and body: two of them, with Nagle's algorithm, cost 40 ms a page.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        url = urls.canonical(self.path)
        self.server.count(url)
        if target := self.server.redirects.get(url):
            self._send(HTTPStatus.MOVED_PERMANENTLY, Location=target)
        elif url.partition("?")[0] == "/calendar":
            self._send_calendar(url)
        else:
            self._send_file(url)

    def _send_calendar(self, url: str) -> None:
        try:
            page = pages.calendar(*parse_qs(url.partition("?")[2]).get("month", []))
        except (ValueError, OverflowError):
            self._send(HTTPStatus.NOT_FOUND)
        else:
            self._send(HTTPStatus.OK, page.encode())

    def _send_file(self, url: str) -> None:
        name = urls.file_name(url)
        path = self.server.directory / name if name else None
        if path and path.is_file() and path.suffix in _TYPES:
            # The name that the client has for this machine.
            url = f"http://{self.headers['Host']}" if self.headers["Host"] else self.server.url
            body = path.read_bytes().replace(SITE_URL.encode(), url.encode())
            self._send(HTTPStatus.OK, body, _TYPES[path.suffix])
        else:
            self._send(HTTPStatus.NOT_FOUND)

    def _send(
        self,
        status: HTTPStatus,
        body: bytes = b"",
        content_type: str = _TYPES[".html"],
        **headers: str,
    ) -> None:
        self.send_response(status)
        headers |= {"Content-Type": content_type, "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Keep the terminal for the crawl."""
