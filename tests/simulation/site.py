"""The site of a simulated crawl: what the network answers, and what became of its pages."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from random import Random
from typing import Any

from scrapy import Request
from scrapy.exceptions import CloseSpider
from scrapy.http import Response
from scrapy.utils.request import fingerprint

ROOT = "https://site.example/"
#: The page of a site in maintenance, which always fails.
DOWN = f"{ROOT}down"
#: The two arguments that spiders have in kinds with domains.
DOMAINS = ("a", "b")


def short(url: str) -> str:
    """Return the path of a URL, for the trace."""
    return url.removeprefix(ROOT) or "/"


class SiteError(OSError):
    """What downloads and callbacks of a simulated crawl raise."""


class Price:
    """What JSON cannot hold, and pickle can."""


class Site:
    """Pages that link each other at random.

    Args:
        rng: makes the site.
        log: notes what is fetched.
        kind: of the run: says which pages there are.

    Attributes:
        links: URL -> URLs that it links, and whether their requests can be stored.
        fails: URL -> how often it still answers with an error.
        stumbling: URL -> how often its callback still raises between two outputs.
        raises: URL -> how often a pipeline still raises for its item; empty if none ever does.
        gone: URL -> status of a page that is missing.
        redirects: URL -> where it leads.
        moves: URL -> where it leads after each time that it was fetched.
        closed: pages that lead to ``DOWN`` as long as it is still fetched.
        shut: how often that is.
        dropped: pages that a middleware drops.
        refused: process and URL of requests that a middleware has dropped.
        failing: URLs that have failed when they were last fetched.
        listed: pages that ``start()`` yields after the start page.
        breaks: whether ``start()`` raises after the last one.
        parts: page -> those whose callbacks make its item together.
        closing: URL -> how often its callback still closes the spider.
        captchas: URL -> how often a spider middleware still raises before its callback.
        spiders: process -> the argument of its spider.
        listings: pages without an item.
        unfiltered: pages that are requested with ``dont_filter``.
        each_run: URLs that are fetched in each run.
        led_to: process and URL -> targets of the redirects, and links that its callback or errback
            has yielded; with "", those of all processes.
        linked: process and URL of links, also of those in an earlier attempt of their page.
        waiting: process and URL -> pages that wait for it, because its request can't be stored.
        done: process and URL of pages whose callback or errback was done; "" for any process.
        is_plain: whether what happens to the pages is not noted, nor fails.
        fetched: how often each URL was fetched.
        crawled_pages: how often the callback of each was done.
        crawled_by: the same by process.
        stored: pages whose item was delivered.
        fields: field of a claim -> URL.
    """

    def __init__(self, rng: Random, log: Callable[[str], None], kind: Any) -> None:
        self._log, self._kind, self.is_plain = log, kind, False
        names = [ROOT, *(f"{ROOT}{number}" for number in range(rng.randint(*kind.pages)))]
        self.links: dict[str, list[tuple[str, bool]]] = {name: [] for name in names}
        for number, name in enumerate(names[1:], 1):
            # Each is linked from one before it, so that all can be reached.
            self.links[rng.choice(names[:number])].append((name, rng.random() < kind.stored))
        for name in names:
            for _ in range(rng.randrange(4)):
                self.links[name].append((rng.choice(names), rng.random() < kind.stored))
        ends = [name for name in names if not self.links[name] and name != ROOT]
        targets = [name for name in names if name not in ends]
        self.redirects = {name: rng.choice(targets) for name in ends if rng.random() < 0.3}
        pages = [name for name in names if name not in (ROOT, *self.redirects)]
        self.gone = {name: rng.choice([404, 410]) for name in pages if rng.random() < kind.gone}
        self._choose_faults(rng, names, pages, kind)
        self.listings = {ROOT, *(name for name in names if rng.random() >= kind.items)}
        self.listings -= self.redirects.keys() | self.gone.keys()
        self.unfiltered = {name for name in pages if not self.links[name] and rng.random() < 0.5}
        run_only = {name for name in names if kind.each_run and re.search(kind.each_run, name)}
        self.each_run = {ROOT, *run_only}
        self.moves: dict[str, list[str]] = defaultdict(list)
        self.closed: list[str] = []
        self.shut = 0
        self.dropped: set[str] = set()
        self.refused: set[tuple[str, str]] = set()
        self.failing: set[str] = set()
        self.listed: list[str] = []
        self.breaks = False
        self.parts: dict[str, list[str]] = {}
        self.closing: dict[str, int] = {}
        self.captchas: dict[str, int] = {}
        self.spiders: dict[str, str] = {}
        self.stored: set[str] = set()
        self.fetched: Counter[str] = Counter()
        self.crawled_pages: Counter[str] = Counter()
        self.crawled_by: Counter[tuple[str, str]] = Counter()
        self.led_to: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.linked: set[tuple[str, str]] = set()
        self.waiting: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.done: set[tuple[str, str]] = set()
        self.fields: dict[str, str] = {}
        self._fields: dict[str, str] = {}

    def begin(self) -> None:
        """Note what follows from the pages that there are."""
        self.each_run |= {*self.unfiltered, *self.leads_nowhere}
        if self._kind.items < 1:  # a redirect to a page that is known may lead to a listing
            self.each_run |= self.listings | self.redirects.keys()
        for name in self.links:
            self._add_field(name)
            self._describe(name)

    @property
    def leads_nowhere(self) -> set[str]:
        """Pages that are dropped, or lead there: a run that picks them up leaves them pending."""
        sources = [
            url
            for url, target in self.redirects.items()
            if target in self.dropped or self._is_foreign(target, self.domain(url))
        ]
        return {*self.dropped, *sources}

    def domain(self, url: str) -> str | None:
        """Return the argument of the spiders that a page belongs to; None if it's any."""
        is_any = not self._kind.domains or url == ROOT or url in self.unfiltered
        return None if is_any else DOMAINS[sum(url.encode()) % 2]

    def _is_foreign(self, url: str, domain: str | None) -> bool:
        return None not in (domain, self.domain(url)) and domain != self.domain(url)

    def _add_field(self, url: str) -> None:
        self._fields[url] = field = fingerprint(Request(url)).hex()
        self.fields[field] = url

    def field(self, url: str) -> str:
        """Return the field of a URL's claim."""
        return self._fields[url]

    def _choose_faults(self, rng: Random, names: list[str], pages: list[str], kind: Any) -> None:
        fails = kind.fails
        self.fails = {name: rng.choice([0] * 8 + [1, 2, 3, 6]) for name in pages if fails}
        # Scrapy fetches the target of a redirect that was retried without asking the filter.
        retried = self.redirects if fails and kind.repeats else ()
        self.fails |= {name: rng.choice([0, 0, 1]) for name in retried}
        for name in self.gone:
            self.fails.pop(name, None)
        self._unreachable = {name for name in pages if rng.random() < 0.5}
        self.stumbling = {name: rng.choice([0] * 9 + [1]) for name in names[1:] if fails}
        self.raises = {name: rng.choice([0] * 5 + [1, 1, 2]) for name in names if kind.raises}

    def _describe(self, name: str) -> None:
        links = " ".join(short(link) + "*" * (not ok) for link, ok in self.links[name])
        more = [
            f"{kind} {getattr(self, kind)[name]}"
            for kind in ("fails", "raises", "gone", "redirects", "closing", "captchas")
            if getattr(self, kind).get(name)
        ]
        more += [kind for kind in ("listings", "unfiltered") if name in getattr(self, kind)]
        self._log(f"site: {', '.join([f'{short(name)} links {links or None}', *more])}")

    # -- what the network answers --

    def respond(self, request: Request, process: str) -> Response:
        """Return the response to a request, or raise."""
        url = request.url
        if not self.is_plain:
            self.fetched[url] += 1
            if url not in self.redirects:
                self.led_to[process, url].clear()
            self._log(f"{process}: fetches {short(url)}")
            self.failing.discard(url)
            if self._strikes(self.fails, url):
                if url in self._unreachable:
                    raise SiteError("connection refused")
                return Response(url, status=503 if url in self.redirects else 500)
            if url == DOWN:
                self._open()
                return Response(url, 503)
        if url in self.redirects and not (self.is_plain and url in self.closed):
            self.leads(process, url, target := self.redirects[url], waits=True)
            if self.moves[url] and not self.is_plain:
                self.redirects[url] = self.moves[url].pop(0)
            return Response(url, 302, headers={"Location": target})
        return Response(url, self.gone.get(url, 200))

    def _open(self) -> None:
        """End the maintenance when this page was fetched often enough."""
        self.shut -= 1
        if not self.shut:
            self._log("site: is open again")
            for name in self.closed:
                del self.redirects[name]

    def publish(self) -> None:
        """Publish a page for each listing that is read in each run; the listing links it."""
        by = self.each_run - self.redirects.keys()  # if they lead to an item, they are remembered
        for name in sorted(self._reached(by) & self.listings):
            new = f"{name}new"
            self.links[name].append((new, True))
            self.links[new] = []
            self._add_field(new)
            self._describe(name)

    # -- what becomes of its pages --

    def error_of(self, url: str) -> Exception | None:
        """Return what a page's callback raises, this time."""
        if self._strikes(self.stumbling, url):
            self._log(f"site: the callback of {short(url)} raises")
            return SiteError("there is no price")
        if self._strikes(self.closing, url):
            self._log(f"site: the callback of {short(url)} closes the spider")
            return CloseSpider("it's an old page")
        return None

    def is_blocked(self, url: str) -> bool:
        """Whether a spider middleware raises for a response, this time."""
        is_blocked = self._strikes(self.captchas, url)
        if is_blocked:
            self._log(f"site: {short(url)} is a captcha")
        return is_blocked

    def _strikes(self, counts: dict[str, int], url: str) -> bool:
        if self.is_plain or not counts.get(url):
            return False
        counts[url] -= 1
        self.failing.add(url)
        return True

    def left(self) -> int:
        """Return how often something still goes wrong, or changes."""
        counts = self.fails, self.stumbling, self.raises, self.closing, self.captchas
        return self.shut + sum(map(len, self.moves.values())) + sum(sum(d.values()) for d in counts)

    def leads(self, process: str, url: str, target: str, *, waits: bool = False) -> None:
        """Note that a page leads to another one, and whether it has to wait for that one."""
        if not self.is_plain:
            self.led_to[process, url].append(target)
            self.led_to["", url].append(target)
            if url not in self.redirects:
                self.linked.add((process, target))
            if waits:
                self.waiting[process, target].add(url)

    def drops(self, url: str, process: str) -> bool:
        """Whether a middleware of a process drops requests for a URL."""
        return url in self.dropped or self._is_foreign(url, self.spiders.get(process))

    def refuses(self, url: str, process: str) -> bool:
        """Whether a middleware of a process drops a request, which is noted."""
        drops = self.drops(url, process)
        if drops:
            self.refused.add((process, url))
        return drops

    def lacks_item(self, url: str) -> bool:
        """Whether a page has an item that is not delivered."""
        no_item = self.listings, self.gone, self.redirects, self.stored
        return not any(url in pages for pages in no_item)

    def store(self, url: str) -> None:
        """Store a page's item, or raise."""
        if self._strikes(self.raises, url):
            raise ConnectionError("database is down")
        self.stored.add(url)

    def crawled(self, response: Response, process: str) -> None:
        """Note that a page's callback or errback is done."""
        self.done |= {(process, response.url), ("", response.url)}
        if response.status == 200:
            self._log(f"{process}: has crawled {short(response.url)}")
            self.crawled_pages[response.url] += 1
            self.crawled_by[process, response.url] += 1

    def forget(self) -> None:
        """Count all pages as not crawled."""
        self.crawled_pages.clear()
        self.done.clear()

    def _reached(self, by: Collection[str]) -> set[str]:
        """Return the start page, and what it leads to by way of such pages."""
        found, waiting = set[str](), [ROOT]
        while waiting:
            url = waiting.pop()
            if url not in found:
                found.add(url)
                if url in by:
                    waiting += [self.redirects[url]] if url in self.redirects else []
                    waiting += [link for link, _ in self.links[url]]
        return found
