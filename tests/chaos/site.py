"""The site that is crawled: pages that link each other, slow on demand."""

import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: How many pages there are, and where each crawl starts.
PAGES, START = 200, "/0"


class Site(ThreadingHTTPServer):
    """Serves a tree of pages with further links, and up to two items a page; notes fetches.

    Args:
        rng: chooses links and items.
    """

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, rng: random.Random) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.fetches: list[str] = []
        #: Seconds that an answer takes on average.
        self.delay = 0.0
        self.pages = {}
        for number in range(PAGES):
            tree = [child for child in (2 * number + 1, 2 * number + 2) if child < PAGES]
            links = [*tree, *rng.sample(range(PAGES), 3)]
            items = [f"{rng.random()}" for _ in range(rng.randrange(3))]
            html = [f'<a href="/{link}">link</a>' for link in links]
            self.pages[f"/{number}"] = "".join([*html, *(f"<p>{item}</p>" for item in items)])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, but not that a crawler was killed in the middle of a page."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.fetches.append(self.path)
        time.sleep(random.uniform(0, 2 * self.server.delay))
        body = f"<html><body>{self.server.pages[self.path]}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None: ...
