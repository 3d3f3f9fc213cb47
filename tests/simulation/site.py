"""The site of a simulated crawl, and what became of its pages."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from random import Random
from typing import Any

from scrapy import Request
from scrapy.http import Response
from scrapy.utils.request import fingerprint

ROOT = "https://site.example/"


def short(url: str) -> str:
    """Return the path of a URL, for the trace."""
    return url.removeprefix(ROOT) or "/"


class SiteError(OSError):
    """What downloads and callbacks of a simulated crawl raise."""


class Price:
    """What JSON cannot hold, and pickle can."""


class Site:
    """Pages that link each other at random; some fail, some redirect.

    Args:
        rng: makes the site.
        pages: their number, besides the start page.
        stored: share of the requests that can be stored with their claims.
        log: notes what is fetched.
        fails: whether some pages fail at first.
        items: share of the pages that have an item.
        raises: whether, for some pages, a pipeline raises at first.
        starts: number of start pages, one for each spider.

    Attributes:
        links: URL -> URLs that it links, and whether their requests can be stored.
        fails: URL -> how often it still answers with an error.
        stumbling: URL -> how often its callback still raises between two outputs.
        redirects: URL -> where it leads.
        raises: URL -> how often a pipeline still raises for its item; empty if none ever does.
        circles: redirects that are followed in each run, because they lead to no page.
        fetched: how often each URL was fetched.
        crawled_pages: how often the callback of each was done.
        crawled_by: the same by process.
        stored: pages whose item a pipeline has stored.
        spiders: those that have crawled each page, or followed each redirect.
    """

    def __init__(
        self,
        rng: Random,
        pages: int,
        stored: float,
        log: Callable[[str], None],
        *,
        fails: bool = True,
        items: float = 1.0,
        raises: bool = False,
        starts: int = 1,
    ) -> None:
        self._log = log
        names = [ROOT, *(f"{ROOT}{number}" for number in range(pages))]
        #: By spider: some have one in common.
        self.starts = [ROOT, *(rng.choice(names[:3]) for _ in range(starts - 1))]
        self.links: dict[str, list[tuple[str, bool]]] = {name: [] for name in names}
        for number, name in enumerate(names[1:], 1):
            # Each is linked from one before it, so that all can be reached.
            self.links[rng.choice(names[:number])].append((name, rng.random() < stored))
        for name in names:
            for _ in range(rng.randrange(4)):
                self.links[name].append((rng.choice(names), rng.random() < stored))
        self.fails = {name: rng.choice([0] * 8 + [1, 2]) for name in names[1:] if fails}
        self.stumbling = {name: rng.choice([0] * 9 + [1]) for name in names[1:] if fails}
        ends = [name for name in names[1:] if not self.links[name] and rng.random() < 0.3]
        self.redirects = {name: rng.choice(names) for name in ends if name not in self.starts}
        #: Pages without an item.
        self.listings = {ROOT, *(name for name in names if items < 1 and rng.random() >= items)}
        self.listings -= self.redirects.keys()
        self.raises = {name: rng.choice([0] * 5 + [1, 1, 2]) for name in names if raises}
        self.circles: set[str] = set()
        self.stored: set[str] = set()
        self.fetched: Counter[str] = Counter()
        self.crawled_pages: Counter[str] = Counter()
        self.crawled_by: Counter[tuple[str, str]] = Counter()
        self.spiders: dict[str, set[int]] = defaultdict(set)
        #: Field of a claim -> URL.
        self.fields = {fingerprint(Request(name)).hex(): name for name in names}
        for name in names:
            self._describe(name)

    def _describe(self, name: str) -> None:
        links = " ".join(short(link) + "*" * (not ok) for link, ok in self.links[name])
        more = f", redirects to {short(self.redirects[name])}" if name in self.redirects else ""
        more += ", lists" if name in self.listings else ""
        more += f", fails {self.fails[name]} times" if self.fails.get(name) else ""
        more += f", its item fails {times} times" if (times := self.raises.get(name)) else ""
        self._log(f"site: {short(name)} links {links or 'nothing'}{more}")

    def fetch(self, request: Request, process: str, spider: int) -> Response | Request:
        """Return the page of a request, or the request that it redirects to."""
        url = request.url
        self.fetched[url] += 1
        self._log(f"{process}: fetches {short(url)}")
        if url in self.redirects:
            self.spiders[url].add(spider)
            target = request.replace(url=self.redirects[url])
            target.meta["redirect_urls"] = [*request.meta.get("redirect_urls", ()), url]
            return target
        if self.fails.get(url):
            self.fails[url] -= 1
            return Response(url, status=500, request=request)
        return Response(url, request=request)

    def publish(self) -> None:
        """Publish a page for each listing that is read in each run; the listing links it."""
        for name in sorted(self._reached(self.listings | self.redirects.keys()) & self.listings):
            new = f"{name}new"
            self.links[name].append((new, True))
            self.links[new] = []
            self.fields[fingerprint(Request(new)).hex()] = new
            self._describe(name)

    def unlink(self) -> None:
        """Take all links off all pages; they stay where they are."""
        self._log("site: no page has a link any more")
        self.links = {name: [] for name in self.links}

    def has_item(self, response: Response) -> bool:
        """Whether a page has an item."""
        return response.status == 200 and response.url not in self.listings

    def stumbles(self, response: Response) -> bool:
        """Whether a page's callback raises, this time."""
        is_left = response.status == 200 and self.stumbling.get(response.url, 0)
        if is_left:
            self.stumbling[response.url] -= 1
            self._log(f"site: the callback of {short(response.url)} raises")
        return bool(is_left)

    def store(self, url: str) -> None:
        """Store a page's item, or raise."""
        if self.raises.get(url):
            self.raises[url] -= 1
            raise ConnectionError("database is down")
        self.stored.add(url)

    def parse(self, response: Response, callback: Callable[..., Any]) -> list[Request]:
        """Return the requests that a page yields."""
        if response.status != 200:
            return []
        return [
            Request(url, callback=callback, meta={} if is_stored else {"price": Price()})
            for url, is_stored in self.links[response.url]
        ]

    def crawled(self, response: Response, process: str, spider: int) -> None:
        """Note that a page's callback is done."""
        if response.status == 200:
            self._log(f"{process}: has crawled {short(response.url)}")
            self.crawled_pages[response.url] += 1
            self.crawled_by[process, response.url] += 1
            self.spiders[response.url].add(spider)

    @property
    def reachable(self) -> set[str]:
        """All pages that a crawl has to get."""
        return self._reached(self.links.keys()) - self.redirects.keys()

    def reachable_by(self, spider: int) -> set[str]:
        """All pages that a spider has to get: the links of pages that it alone has crawled.

        A page that another one has recorded too may have left its links to that one.
        """
        own = {url for url, spiders in self.spiders.items() if spiders == {spider}}
        return (
            self._reached({*own, self.starts[spider]}, {self.starts[spider]})
            - self.redirects.keys()
        )

    def _reached(self, by: Collection[str], starts: Collection[str] = ()) -> set[str]:
        """Return the start pages, and what they lead to by way of such pages."""
        found, waiting = set[str](), [*(starts or self.starts)]
        while waiting:
            url = waiting.pop()
            if url in found:
                continue
            found.add(url)
            if url in by:
                waiting += [self.redirects[url]] if url in self.redirects else []
                waiting += [link for link, _ in self.links[url]]
        return found
