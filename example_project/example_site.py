"""Fell & Ford, an outdoor magazine that doesn't exist: the site that the example project crawls.

    python -m example_site                             serves it on port 8000 until Ctrl-C
    curl -d 3 http://127.0.0.1:8000/publish            publishes three more stories

It's the same on every machine: navigation on each page, listings in several pages, stories that
link earlier ones, some by an address that has moved, and links to pages that are gone.
"""

import argparse
import contextlib
import html
from collections import Counter
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Event, Lock, Thread

STORIES = 304
PER_LISTING = 12
SECTIONS = ("hiking", "climbing", "paddling", "cycling", "camping", "skiing", "caving", "gear")
OPENINGS = ("A Cold", "A Short", "A Slow", "Alone on", "Beyond", "Three Days at", "Return to")
PLACES = (
    *("Arkle", "Brae Moor", "Calder Head", "Dun Tor", "Eskdale", "Fenwick Edge", "Glen Orrin"),
    *("Harter Crag", "Innis Water", "Kinder Gap", "Langdale", "Mell Fell", "Nether Beck"),
)


class Magazine:
    """The pages of the magazine.

    Attributes:
        stories: the paths of its stories. They're written once.
        listings: the paths of the pages that list stories. They change with each story.
        moved: old addresses, and where they lead.
        gone: the paths of pages that are linked, and gone.
        hits: how often each path was fetched.
    """

    def __init__(self, count: int = STORIES) -> None:
        self.stories: list[str] = []
        self.listings: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.gone: set[str] = set()
        self.hits: Counter[str] = Counter()
        self._titles: list[str] = []
        self._pages: dict[str, str] = {}
        self._lock = Lock()
        self.publish(count)

    @property
    def lasting(self) -> set[str]:
        """What never changes, so that one look at it is enough: all but the listings."""
        return {*self.stories, *self.moved, *self.gone}

    def publish(self, count: int) -> None:
        """Add stories, and write the listings again."""
        for number in range(len(self.stories), len(self.stories) + count):
            random = Random(number)
            self._titles.append(f"{random.choice(OPENINGS)} {random.choice(PLACES)}")
            slug = self._titles[-1].lower().replace(" ", "-")
            self.stories.append(f"/{SECTIONS[number % len(SECTIONS)]}/{slug}-{number}")
            self._pages[self.stories[number]] = self._story(number, random)
        newest = range(len(self.stories))[::-1]
        self.listings = {"/": self._page("Stories from the hills", newest[:PER_LISTING])}
        for index, section in enumerate(SECTIONS):
            own = [number for number in newest if number % len(SECTIONS) == index]
            starts = range(0, len(own), PER_LISTING)
            paths = [f"/{section}/", *(f"/{section}/{page}/" for page in range(2, len(starts) + 1))]
            for path, start in zip(paths, starts, strict=True):
                self.listings[path] = self._page(section, own[start : start + PER_LISTING], paths)

    def answer(self, path: str) -> tuple[HTTPStatus, str]:
        """Return the status and the page of a path, or where it has moved."""
        with self._lock:
            self.hits[path] += 1
        if path in self.moved:
            return HTTPStatus.MOVED_PERMANENTLY, self.moved[path]
        page = self.listings.get(path) or self._pages.get(path)
        return (HTTPStatus.OK, page) if page else (HTTPStatus.NOT_FOUND, "")

    def _story(self, number: int, random: Random) -> str:
        """A story never links a later one, so that its page stays as it is."""
        links = []
        if number % 15 == 14:
            old = f"/2019/story.php?id={number // 15}"
            self.moved[old] = self.stories[number // 15]
            links.append(old)
        if number % 30 == 7:
            links.append(f"/shop/map-{number // 30}")
            self.gone.add(links[-1])
        earlier = random.sample(range(number), min(6, number))
        return self._page(self._titles[number], earlier, links)

    def _page(self, title: str, stories: Iterable[int], links: Iterable[str] = ()) -> str:
        found = [("/", "Home"), *((f"/{name}/", name) for name in SECTIONS)]
        found += [(link, "More") for link in links]
        found += [(self.stories[number], self._titles[number]) for number in stories]
        items = (f'<li><a href="{html.escape(path)}">{text}</a></li>' for path, text in found)
        head = f'<!DOCTYPE html>\n<html lang="en"><head><title>{title}</title></head>'
        return "\n".join([head, f"<body><h1>{title}</h1>", "<ul>", *items, "</ul></body></html>"])


@contextlib.contextmanager
def serve(magazine: Magazine, port: int = 0, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve the magazine from a thread of this process; give its URL. Port 0 is a free one."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # One segment for head and body, because two of them with Nagle's algorithm take 40 ms.
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            status, text = magazine.answer(self.path)
            is_moved = status == HTTPStatus.MOVED_PERMANENTLY
            self.send(status, "" if is_moved else text, {"Location": text} if is_moved else {})

        def do_POST(self) -> None:
            count = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/publish" and count.isdigit():
                magazine.publish(int(count))
                self.send(HTTPStatus.OK, f"{len(magazine.stories)} stories\n", {})
            else:
                self.send(HTTPStatus.BAD_REQUEST, "", {})

        def send(self, status: HTTPStatus, text: str, headers: dict[str, str]) -> None:
            self.send_response(status)
            body = text.encode()
            headers |= {"Content-Type": "text/html", "Content-Length": str(len(body))}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Keep the terminal for the crawl."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # Several crawlers may connect at a time, each with all its connections.
        request_queue_size = 128

        def handle_error(self, *_args: object) -> None:
            """A crawler that was killed in the middle of a page is no error."""

    with Server((host, port), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m example_site", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 listens to other machines too")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    site = serve(Magazine(), options.port, options.host)
    with contextlib.suppress(KeyboardInterrupt), site as url:
        print(f"Fell & Ford is at {url}", flush=True)
        Event().wait()


if __name__ == "__main__":
    main()
