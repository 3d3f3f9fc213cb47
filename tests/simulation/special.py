"""Makes the sites of simulated crawls, with pages that are hard to follow on ordinary sites."""

from collections.abc import Callable
from random import Random
from typing import Any

from simulation.site import DOWN, ROOT, Site

#: A page that a middleware drops, in each run.
LOGIN = f"{ROOT}login"
#: Requests that share an object, for each page that has such.
PARTS = 3


def make_site(rng: Random, log: Callable[[str], None], kind: Any) -> Site:
    """Return a site of a kind of runs."""
    site = Site(rng, log, kind)
    special = _Special(site, rng, kind)
    if kind.lists:
        special.add_list()
    if kind.redirects:
        special.add_redirects()
    if kind.objects:
        special.add_parts()
    if kind.domains:
        special.add_domains()
    if kind.closes or kind.captchas:
        special.add_trouble()
    site.begin()
    return site


class _Special:
    """Adds pages and links to a site."""

    def __init__(self, site: Site, rng: Random, kind: Any) -> None:
        self._site, self._rng, self._kind = site, rng, kind
        self._parents = [name for name, links in site.links.items() if links]

    def _add(self, *names: str, parent: str = "") -> None:
        """Add pages without links that other pages link, or that one does."""
        for name in names:
            page = parent or self._rng.choice(self._parents)
            self._site.links.setdefault(name, [])
            self._site.links[page].append((name, self._rng.random() < self._kind.stored))

    def add_list(self) -> None:
        """Let `start()` yield pages, some of them twice, and most of which nothing links."""
        site, rng = self._site, self._rng
        own = [f"{ROOT}listed{number}" for number in range(rng.randint(2, 12))]
        site.links |= {name: [] for name in own}
        site.listed = own + rng.choices([*site.links], k=rng.randint(0, 6))
        rng.shuffle(site.listed)
        site.breaks = rng.random() < 0.3

    def add_redirects(self) -> None:
        """Let pages redirect to one that fails, to one that changes, and to one that is dropped."""
        site, rng = self._site, self._rng
        site.shut, site.links[DOWN] = rng.choice([1, 2, 4, 6]), []
        site.closed = [f"{ROOT}closed{number}" for number in range(rng.randint(2, 6))]
        issues = [f"{ROOT}issue{number}" for number in range(3)]
        private = [f"{ROOT}private{number}" for number in range(3)]
        latest, archive = f"{ROOT}latest", f"{ROOT}archive"
        self._add(*site.closed, latest, archive, LOGIN, *private)
        self._add(*issues, parent=archive)
        for name in site.closed:
            site.links[name].append((rng.choice(self._parents), True))
        site.fails |= {name: rng.choice([0, 0, 1, 2]) for name in issues if self._kind.fails}
        site.redirects |= dict.fromkeys(site.closed, DOWN) | dict.fromkeys(private, LOGIN)
        site.redirects[latest], *site.moves[latest] = issues
        site.dropped.add(LOGIN)

    def add_parts(self) -> None:
        """Let items be made of several requests that share an object.

        Where pages are crawled again, these requests have to be, too: they aren't filtered.
        """
        site, rng, kind = self._site, self._rng, self._kind
        others = {*site.listings, *site.redirects, *site.gone, *site.unfiltered}
        for page in [page for page in site.links if page not in others]:
            if rng.random() < kind.objects:
                site.parts[page] = [f"{page}part{number}" for number in range(PARTS)]
        for page, parts in site.parts.items():
            self._add(*parts, parent=page)
            site.listings.update(parts)
            if kind.faults or kind.fails:
                site.unfiltered.update(parts)
                site.fails |= {part: rng.choice([0, 0, 0, 1]) for part in parts}

    def add_domains(self) -> None:
        """Let each page be reached by way of its domain."""
        site = self._site
        for name in [*site.links][1:]:
            alike = [one for one in self._parents if site.domain(one) in (None, site.domain(name))]
            before = alike[: alike.index(name)] if name in alike else alike
            self._add(name, parent=self._rng.choice(before))

    def add_trouble(self) -> None:
        """Let callbacks close the spider, and a spider middleware keep responses from them."""
        site, rng, kind = self._site, self._rng, self._kind
        names = [name for name in site.links if name not in (ROOT, DOWN)]
        site.closing = {name: rng.choice([0] * 7 + [1]) for name in names if kind.closes}
        site.captchas = {name: rng.choice([0] * 5 + [1, 2]) for name in names if kind.captchas}
