"""A small web site that misbehaves as it is told to, and crawls of it, each in its own process."""

import json
import os
import signal
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition
from typing import Any, Self
from urllib.parse import urljoin

import redis
from scrapy import Request, version_info
from scrapy.utils.request import fingerprint

from scrapy_bloom import BloomFilter
from support.nursery import Nursery, options_of, shared_nursery
from support.polling import PATIENCE, until
from support.servers import Server
from support.serving import serving

# -- the site --


@dataclass(frozen=True)
class Reply:
    """What the site answers: a page with links, unless it is told otherwise.

    Args:
        links: of the page.
        status: of the answer.
        location: where a redirect leads.
        refresh: where the page's meta refresh leads.
        cookie: which is set; a request that brings it is answered with the next reply.
        needs: a cookie; a request without it is sent to /login.
        resets: whether the connection is reset instead.
        text: of the page, after the links.
        body: of the answer, instead of a page.
        drip: seconds between two bytes of its body.
    """

    links: Sequence[str] = ()
    status: int = 200
    location: str = ""
    refresh: str = ""
    cookie: str = ""
    needs: str = ""
    resets: bool = False
    text: str = ""
    body: bytes = b""
    drip: float = 0.0


def page(*links: str) -> Reply:
    return Reply(links)


def moved(location: str, **kwargs: Any) -> Reply:
    return Reply(status=302, location=location, **kwargs)


ERROR, DENIED, RESET = Reply(status=500), Reply(status=403), Reply(resets=True)
#: What is not on the site: such a page counts as crawled.
MISSING = Reply(status=404)
Pages = Mapping[str, Reply | Sequence[Reply]]


def tree(count: int) -> dict[str, Reply]:
    """Return a site on which each page links two further ones, and two that others link too."""
    links = {
        number: [2 * number + 1, 2 * number + 2, (number * 7) % count, number // 2]
        for number in range(count)
    }
    pages = {f"/{n}": page(*(f"/{i}" for i in links[n] if i < count)) for n in range(count)}
    return {"/": page("/0"), **pages}


def star(count: int) -> dict[str, Reply]:
    """Return a site whose start page links so many pages."""
    links = [f"/{number}" for number in range(count)]
    return {"/": page(*links), **dict.fromkeys(links, page())}


@dataclass(frozen=True)
class Fetch:
    """A request as the site got it."""

    path: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)


class OddSite(ThreadingHTTPServer):
    """Answers each path as told, the first time with the first reply and so on.

    What is fetched under another host name than 127.0.0.1 is noted with its whole URL.

    Args:
        pages: path -> its reply, or its replies, of which the last one is repeated.
    """

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, pages: Pages) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        #: The same site, under a name that spiders are not allowed on.
        self.offsite = f"http://localhost:{self.server_port}"
        self.pages = dict(pages)
        #: What is answered on all other paths.
        self.rest: Callable[[str], Reply] = lambda _: MISSING
        self.fetches: list[Fetch] = []
        #: Answers that are being held back.
        self.held = 0
        self._limit: float = float("inf")
        self._held_paths = set[str]()
        self._active = 0
        self._changed = Condition()

    def hits(self) -> Counter[str]:
        """How often each path was fetched."""
        with self._changed:
            return Counter(fetch.path for fetch in self.fetches)

    def hold_after(self, count: int) -> None:
        """Answer all requests until now and so many more; hold back the answers to others."""
        with self._changed:
            self._limit = len(self.fetches) + count
            self._changed.notify_all()

    def hold(self, *paths: str) -> None:
        """Hold back the answers on these paths, too."""
        with self._changed:
            self._held_paths |= {*paths}

    def release(self, *paths: str) -> None:
        """Hold back the answers on these paths no more; without any, hold back nothing."""
        with self._changed:
            self._held_paths = self._held_paths - {*paths} if paths else set()
            self._limit = self._limit if paths else float("inf")
            self._changed.notify_all()

    def answer(self, fetch: Fetch) -> Reply:
        """Note a request; return its reply, when that is not held back any more."""
        with self._changed:
            self.fetches.append(fetch)
            number = len(self.fetches)
            times = sum(f.path == fetch.path and f.method == fetch.method for f in self.fetches)
            if not self._answers(number, fetch.path):
                self.held += 1
                self._changed.wait_for(lambda: self._answers(number, fetch.path), PATIENCE)
                self.held -= 1
        replies = self.pages.get(fetch.path) or self.rest(fetch.path)
        replies = [replies] if isinstance(replies, Reply) else replies
        reply = replies[min(times, len(replies)) - 1]
        if reply.cookie and reply.cookie in fetch.headers.get("Cookie", ""):
            return replies[-1]
        if reply.needs not in fetch.headers.get("Cookie", ""):
            return moved("/login")
        return reply

    def _answers(self, number: int, path: str) -> bool:
        return number <= self._limit and path not in self._held_paths

    def paths(self) -> set[str]:
        """All that is there, linked or was fetched."""
        found = {*self.pages, *self.hits()}
        for replies in self.pages.values():
            for reply in [replies] if isinstance(replies, Reply) else replies:
                found |= {*reply.links, reply.location, reply.refresh}
        return found - {""}

    def drain(self) -> None:
        """Hold back nothing, and wait until all that was asked before is answered."""
        self.release()
        with socket.create_connection(("127.0.0.1", self.server_port), PATIENCE) as last:
            last.shutdown(socket.SHUT_WR)
            last.recv(1)
        with self._changed:
            assert self._changed.wait_for(lambda: not self._active, PATIENCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._active += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.close_request(request)  # not by a shutdown first, which would end a reset politely
        with self._changed:
            self._active -= 1
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, but not that a crawler was killed in the middle of a page."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: OddSite
    wbufsize = -1

    def _answer(self) -> None:
        site, host = self.server, f"http://{self.headers['Host']}"
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_whole = host == site.url or "://" in self.path  # it is, where this site is the proxy
        path = self.path.removeprefix(site.url) if is_whole else host + self.path
        reply = site.answer(Fetch(path, self.command, dict(self.headers.items())))
        if reply.resets:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return
        text = "".join(f'<a href="{link}">link</a>' for link in reply.links) + reply.text
        if reply.refresh:
            text += f'<meta http-equiv="refresh" content="0;url={reply.refresh}">'
        html = f"<html><body>{text}</body></html>"
        kind = "text/html"
        if path == "/robots.txt":
            html, kind = reply.text, "text/plain"
        self.send_response(reply.status)
        # Old Twisted takes HTTP/1.0 for 1.1, and would send the next request here.
        self.send_header("Connection", "close")
        self.send_header("Content-Type", kind)
        body = reply.body or html.encode()
        self.send_header("Content-Length", str(len(body)))
        if reply.location:
            self.send_header("Location", reply.location)
        if reply.cookie:
            self.send_header("Set-Cookie", reply.cookie)
        self.end_headers()
        for part in [body] if not reply.drip else map(bytes, zip(body, strict=True)):
            self.wfile.write(part)
            if reply.drip:
                self.wfile.flush()
                time.sleep(reply.drip)

    do_GET = do_POST = _answer  # noqa: N815 - the name http.server wants

    def log_message(self, *_args: object) -> None:
        """Keep the terminal for the tests."""


@contextmanager
def serve(pages: Pages) -> Iterator[OddSite]:
    """Serve a site from threads of this process."""
    with serving(OddSite(pages)) as site:
        try:
            yield site
        finally:
            site.release()


# -- crawls --

#: Settings for a queue of scrapy-redis's, which is on the lab's server, too.
SHARED_QUEUE: dict[str, Any] = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
}

#: Scrapy as it comes, without scrapy-bloom.
PLAIN_SCRAPY = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}

#: Begins the file of each spider.
IMPORTS = "from scrapy import Request\nfrom support.spiders import Component, Keep, OddSpider\n"
PLAIN = """
class PlainSpider(OddSpider):
    pass
"""


@dataclass(frozen=True)
class Claim:
    """A claim as it is on the server.

    Args:
        kind: whose it is: a worker's (w), a queue's (q), or nobody's, because it failed (-).
        owner: whose exactly.
        attempt: how often it failed.
        request: as JSON, if it is stored.
        key: the hash it is in.
        field: its field of the hash.
    """

    kind: str
    owner: str
    attempt: int
    request: str
    key: str
    field: str


def kinds(claims: Mapping[str, Claim]) -> dict[str, str]:
    """Return whose the claims are, by path."""
    return {path: claim.kind for path, claim in claims.items()}


@dataclass(frozen=True)
class Done:
    """A crawl that has ended, and what it left on the server.

    Args:
        hits: how often it fetched each path.
        recorded: which of the site's URLs the filter holds.
        claims: the claims by path; those of requests that are not looked up as once:path.
        workers: the entries of workers.
    """

    stats: dict[str, Any]
    log: str
    hits: Counter[str]
    recorded: set[str]
    claims: dict[str, Claim]
    workers: list[Any]


class Crawl:
    """A crawl that is running."""

    def __init__(self, nursery: Nursery, pid: int, directory: Path) -> None:
        self.pid, self._nursery, self._directory = pid, nursery, directory

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text()

    @property
    def is_over(self) -> bool:
        return self._nursery.exit_code(self.pid) is not None

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds, while the crawl runs."""

        def holds() -> bool:
            was_over, is_true = self.is_over, bool(condition())
            assert is_true or not was_over, self.log
            return is_true

        until(holds, what)

    def ask_to_stop(self, *, at_once: bool = False) -> None:
        """Send SIGINT, or a second one, and wait until it is received."""
        reply = "forcing unclean shutdown" if at_once else "shutting down gracefully"
        if not self.is_over:
            os.kill(self.pid, signal.SIGINT)
        until(lambda: reply in self.log or self.is_over, "the signal is received")
        assert reply in self.log

    def kill(self) -> None:
        self._nursery.kill(self.pid)

    def wait(self) -> dict[str, Any]:
        """Wait for the end; return the stats, if the process had the time to write them."""
        assert self._nursery.wait(self.pid) == 0, self.log
        stats = self._directory / "stats.json"
        return json.loads(stats.read_text()) if stats.exists() else {}


class Lab:
    """A site, a Redis server, and crawls of the one that remember in the other.

    Args:
        site: the site.
        redis_url: address of the server.
        directory: where the processes may write.
    """

    def __init__(self, site: OddSite, redis_url: str, directory: Path) -> None:
        self.site, self.redis_url, self.directory = site, redis_url, directory
        self.nursery = shared_nursery()
        # The usual time-out, 5 seconds, is short where many processes share a core.
        self.client = redis.Redis.from_url(redis_url, socket_timeout=60)
        self._crawls = 0

    @contextmanager
    def start(
        self, spider: str = PLAIN, *, arguments: Any = None, **settings: Any
    ) -> Iterator[Crawl]:
        """Run a spider in the background; if it still runs at the end, it is killed.

        Then the site answers what it was asked, before another crawl begins.

        Args:
            spider: its code.
            arguments: of the spider, by name. (Their type fits values of ``settings``, too.)
            settings: of the crawl.
        """
        self._crawls += 1
        directory = self.directory / str(self._crawls)
        directory.mkdir()
        (directory / "odd_spider.py").write_text(IMPORTS + spider)
        settings = {
            "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
            "EXTENSIONS": '{"support.spiders.StatsFile": 0}',
            "STATS_FILE": directory / "stats.json",
            "TELNETCONSOLE_ENABLED": False,
            "ITEMS_FILE": self.directory / "items",
            "SITE_URL": self.site.url,
            "BLOOM_REDIS_URL": self.redis_url,
            "REDIS_URL": self.redis_url,
        } | settings
        (directory / "log").touch()
        given = [f"-a{name}={value}" for name, value in (arguments or {}).items()]
        command = ["runspider", "odd_spider.py", *given, *options_of(settings)]
        pid = self.nursery.start(command, directory / "log", directory)
        crawl = Crawl(self.nursery, pid, directory)
        try:
            yield crawl
        finally:
            crawl.kill()
            self.site.drain()

    def crawl(self, spider: str = PLAIN, **settings: Any) -> Done:
        """Run a spider to its end."""
        before = self.site.hits()
        with self.start(spider, **settings) as crawl:
            stats, log = crawl.wait(), crawl.log
        hits, key = self.site.hits() - before, settings.get("BLOOM_KEY", "odd:bloom")
        return Done(stats, log, hits, self.recorded(key), self.claims(key), self.workers(key))

    def refused(self, spider: str = PLAIN, **settings: Any) -> str:
        """Run a crawl that does not begin: it fetches nothing, and fails. Return its log."""
        before = self.site.hits()
        with self.start(spider, **settings) as crawl:
            # Scrapy 2.13 and 2.14 end with status 0, whatever goes wrong while a spider opens.
            assert self.nursery.wait(crawl.pid) or version_info < (2, 15), crawl.log
        assert self.site.hits() == before
        return crawl.log

    @contextmanager
    def midway(self, pages: int, spider: str = PLAIN, **settings: Any) -> Iterator[Crawl]:
        """Run a crawl until it has got so many pages, and waits for others."""
        self.site.hold_after(pages)
        with self.start(spider, **settings) as crawl:
            crawl.until(lambda: self.site.held, "the crawl gets under way")
            yield crawl

    def kill_midway(self, pages: int, spider: str = PLAIN, **settings: Any) -> None:
        """Kill a crawl that has got so many pages."""
        with self.midway(pages, spider, **settings) as crawl:
            crawl.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def stop_midway(self, pages: int, spider: str = PLAIN, **settings: Any) -> None:
        """Stop a crawl that has got so many pages; what is in flight by then is finished."""
        with self.midway(pages, spider, **settings) as crawl:
            crawl.ask_to_stop()
            self.site.release()
            crawl.wait()

    def missing(self) -> set[str]:
        """The pages that no run has fetched."""
        return self.site.pages.keys() - self.site.hits().keys()

    def fetched_twice(self) -> set[str]:
        """The pages that were fetched again, without the start page."""
        return {path for path, times in self.site.hits().items() if times > 1 and path != "/"}

    def items(self) -> list[dict[str, Any]]:
        """The items that ``Keep`` has written in all runs."""
        return [json.loads(line) for line in (self.directory / "items").read_text().splitlines()]

    # -- what is on the server --

    def recorded(self, key: str = "odd:bloom") -> set[str]:
        """Which of the site's URLs the filter holds, as in ``Done``."""
        paths = sorted(self.site.paths())
        found = BloomFilter(self.client, key).contains([self._identify(path) for path in paths])
        return {path for path, is_there in zip(paths, found, strict=True) if is_there}

    def claims(self, key: str = "odd:bloom") -> dict[str, Claim]:
        """The claims by path, as in ``Done``."""
        names = {self._identify(path).hex(): path for path in self.site.paths()}
        found = {}
        for hash_key in self.client.scan_iter(f"{{{key}:*}}:claims:*"):
            for raw, value in self.client.hgetall(hash_key).items():
                owner, _, _, attempt, request = value.decode().split(" ", 4)
                field = raw.decode()
                name = names.get(field, field)
                if field.startswith(b"once:".hex()) and request:
                    name = "once:" + json.loads(request)["url"].removeprefix(self.site.url)
                place = hash_key.decode()
                found[name] = Claim(owner[0], owner, int(attempt), request, place, field)
        return found

    def workers(self, key: str = "odd:bloom") -> list[Any]:
        """The entries of workers, as in ``Done``."""
        keys = self.client.scan_iter(f"{{{key}:0}}:workers:*")
        return [entry for one in keys for entry in self.client.zrange(one, 0, -1)]

    def now(self) -> int:
        """The server's clock."""
        return int(self.client.time()[0])

    def make_due(self, *paths: str) -> None:
        """Let the time pass that failed pages have to wait: these, or all."""
        for path, claim in self.claims().items():
            if claim.kind == "-" and (path in paths or not paths):
                value = f"{claim.owner} 0.0 1 {claim.attempt} {claim.request}"
                self.client.hset(claim.key, claim.field, value)

    def _identify(self, path: str) -> bytes:
        return fingerprint(Request(urljoin(self.site.url, path)))


LabOf = Callable[[Pages], Lab]


@contextmanager
def labs(binary: str, directories: Callable[[str], Path]) -> Iterator[LabOf]:
    """Yield a function that makes labs: sites with given pages, and databases of their own.

    Args:
        binary: of the Redis server.
        directories: makes them, by name.
    """
    with ExitStack() as stack:
        server = stack.enter_context(Server(binary, "--databases", "100"))
        databases = iter(range(100))

        def make(pages: Pages) -> Lab:
            url = server.url.removesuffix("/0") + f"/{next(databases)}"
            site = stack.enter_context(serve(pages))
            return stack.enter_context(Lab(site, url, directories("lab")))

        yield make
