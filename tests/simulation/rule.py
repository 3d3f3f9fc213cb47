"""Checks, each time a page is remembered, that everything that it led to is safe.

A link, or a redirect's target, is safe if it's recorded in the filter, or stored with its request
where a later run finds it. The check comes right after the server has carried out the script that
records a page, before anything else can happen. So it finds a page that breaks the rule although,
by luck, nothing is lost in the end.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from scrapy_bloom.bloom.protocol import scripts
from simulation.site import ROOT, Site, short
from simulation.world import FLUSH, URL, Words, World

#: How the fields of claims begin whose requests aren't looked up.
ONCE = b"once:".hex()
#: The script that records pages, without and with a check of the server's process.
CONFIRM = [scripts.load("confirm", on_known_server=known) for known in (False, True)]


class Rule:
    """The rule, for one site.

    Args:
        world: whose server is looked at.
        site: knows what each page has led to.
    """

    def __init__(self, world: World, site: Site) -> None:
        self._world, self._site = world, site
        #: URL -> the bitmaps that it was recorded in, with its bits.
        self._recorded: dict[str, list[tuple[str, Sequence[int]]]] = defaultdict(list)
        #: Field of each claim that there is now -> its owner and its request.
        self._claims: dict[str, tuple[str, str]] = {}
        #: Fields and URLs of claims that are lost, but not their requests.
        self._kept: set[str] = set()
        #: Pages that were found to be crawled for the page that is checked now. They may be linked
        #: in circles, and looked at one after the other in many orders.
        self._crawled: set[str] = set()
        #: Pages that the batch records which is carried out now.
        self._together: set[str] = set()

    def look(self, name: str, commands: Sequence[Words], replies: Sequence[Any]) -> None:
        """Check the pages that a batch of commands has recorded.

        Args:
            name: of the process that has sent the batch.
            commands: the batch.
            replies: to the commands that were carried out.
        """
        recorded: list[str] = []
        self._together = set()
        for words, reply in zip_longest(commands, replies):
            if self._world.script_of(words) == "add" and ":claims:" in words[2 + words[2]]:
                urls = [self._site.fields[one] for one in words if one in self._site.fields]
                self._together |= {*urls}
                recorded += self._note(words, urls, reply)
        claims = self._world.claims().items() if recorded else ()
        self._claims = {field: (one.owner, one.request) for (_, field), one in claims}
        for url in recorded:
            if problem := self._problem(name, url):
                unsafe, why = problem
                what = f"{short(url)} is remembered, but {why}"
                self._world.violate(what, short(url), short(unsafe))

    def _note(self, words: Words, urls: Sequence[str], reply: Any) -> Iterator[str]:
        """Note where pages are recorded, and yield those that were new."""
        if not isinstance(reply, list) or reply[0] != b"ok":
            return
        keys, script = words[3 : 3 + words[2]], next(one for one in CONFIRM if words[1] in one)
        own = dict(zip(script.arguments, words[3 + len(keys) :], strict=False))
        # As lua/bitmaps.lua has it: the offsets of each URL in the first bitmap that is written.
        count, group, offsets = own["hashes"], own["groups"][0], own["offsets"]
        for place, (url, verdict) in enumerate(zip(urls, reply[1].decode(), strict=True)):
            if verdict == "1":
                at = 4 * count * (place * own["sizes"] + group)
                self._recorded[url].append((keys[1], struct.unpack_from(f"<{count}I", offsets, at)))
                yield url

    # -- what a page has led to --

    def _problem(self, name: str, url: str) -> tuple[str, str] | None:
        """Return a URL that isn't safe, and why its page should not be remembered for it."""
        site, world = self._site, self._world
        self._crawled = set()
        # A worker that lives has it in its memory, and claims it again if it fails. If all is lost,
        # only a page that begins afterwards may take that for safe.
        self._kept = world.evicted | (
            world.flushed if self._began_after_flush(name, url) else set()
        )
        if url in site.redirects:
            return self._problem_of_redirect(name, url)
        if (name, url) not in site.done:
            return url, "its callback has not run"
        if site.lacks_item(url):
            return url, "its item is not delivered"
        for link in site.led_to[name, url]:
            if not self._is_safe(link, name, {url}) and not self._waits(link, url, name):
                return link, f"its link {self._describe(link)}"
        return None

    def _problem_of_redirect(self, name: str, url: str) -> tuple[str, str] | None:
        led_to = self._site.led_to
        # The target may have come out of a queue that another process has put it into. And a page
        # that was fetched twice at the same time may have moved.
        targets = led_to[name, url] or led_to["", url]
        if not targets:
            return url, "it has led nowhere"
        if any(self._is_safe(one, name, {url}, is_target=True) for one in targets):
            return None
        if self._waits(targets[-1], url, name):
            return None
        return targets[-1], f"its target {self._describe(targets[-1])}"

    def _began_after_flush(self, name: str, url: str) -> bool:
        trace = [line[11:] for line in self._world.trace]  # after the time
        last = {what: place for place, what in enumerate(trace)}
        return last.get(f"{name}: fetches {short(url)}", 0) > last.get(FLUSH, 0)

    def _describe(self, url: str) -> str:
        owner, _ = self._claims.get(self._site.field(url), ("", ""))
        has_failed = " that failed" * owner.startswith("-")
        what = f"has a claim{has_failed} without a request" if owner else "has no claim"
        return f"{short(url)} {what}, and isn't recorded"

    def _is_safe(self, url: str, name: str, seen: set[str], *, is_target: bool = False) -> bool:
        """Whether a later run crawls a URL, if nobody crawls it now.

        Args:
            url: that something led to.
            name: of the process.
            seen: URLs that are being looked at.
            is_target: whether a redirect leads there: that ends as its target does.
        """
        owner, request = self._claims.get(self._site.field(url), ("", ""))
        # Each run begins with the start page, and a list.
        starts = ROOT, *self._site.listed
        if request or url in starts or url in {*seen, *self._together} or self.is_recorded(url):
            return True
        has_failed = owner.startswith("-") or url in self._site.failing
        if has_failed and not is_target and self._is_found_again(url, seen):
            return True
        # What is dropped is meant to be, but a redirect that this process follows there is, too. If
        # a link has led there before, it was stored then.
        is_followed = is_target and (name, url) in self._site.refused
        is_linked = (name, url) in self._site.linked
        if self._site.drops(url, name) and (not is_followed or is_linked):
            return True
        if {url, self._site.field(url)} & self._kept or self._is_led_to_again(url, seen):
            return True
        return self._is_stored_once(url) or self._is_crawled(url, name, {*seen, url})

    def _is_found_again(self, url: str, seen: set[str]) -> bool:
        """Whether another page that leads to a URL has failed with it, or isn't remembered yet."""
        site = self._site
        found = (page for (name, page), led_to in site.led_to.items() if not name and url in led_to)
        still = {page for page in found if site.redirects.get(page, url) == url}
        # After a retry, Scrapy doesn't filter redirects, so only their source is pending.
        still |= {page for page, target in site.redirects.items() if target in still}
        return ROOT in still or any(site.field(page) in self._claims for page in still - seen)

    def _is_led_to_again(self, url: str, seen: set[str]) -> bool:
        """Whether the server has lost a URL together with a page that leads there."""
        if not {"forget", "restart"} & {*self._world.struck}:
            return False
        starts = {ROOT, *self._site.listed}
        pages = {page for (name, page), led_to in self._site.led_to.items() if url in led_to}
        return any(
            page in starts
            or self._claims.get(self._site.field(page), ("", ""))[1]
            or self._is_led_to_again(page, {*seen, page})
            for page in pages - seen
            if page in self._site.each_run or not self.is_recorded(page)
        )

    def is_recorded(self, url: str) -> bool:
        """Whether a page is recorded now."""
        return any(
            all(self._world.execute("BITFIELD_RO", key, *_gets(bits)))
            for key, bits in self._recorded.get(url, ())
        )

    def _is_stored_once(self, url: str) -> bool:
        """Whether the request is stored although it's not looked up."""
        return any(
            url in URL.findall(request)
            for field, (_, request) in self._claims.items()
            if field.startswith(ONCE)
        )

    def _is_crawled(self, url: str, name: str, seen: set[str]) -> bool:
        """Whether a page is crawled, although it's not recorded, and all that it led to is safe.

        For example, it's read in each run, or the server has lost that it was recorded.
        """
        site, led_to = self._site, self._site.led_to["", url]
        if url in self._crawled:
            return True
        if url in site.redirects:
            led_to = led_to[-1:]
            is_done = bool(led_to)
        else:
            is_done = ("", url) in site.done and not site.lacks_item(url)
        is_crawled = is_done and all(self._is_safe(one, name, seen) for one in led_to)
        if is_crawled:
            self._crawled.add(url)
        return is_crawled

    def _waits(self, url: str, page: str, name: str) -> bool:
        """Whether a URL waits for a page: then the page that it was found on yields it again."""
        parents, found = [page], {page}
        while parents:
            more = self._site.waiting[name, parents.pop()] - found
            found |= more
            parents += more
        return url in found


def _gets(bits: Sequence[int]) -> Iterator[Any]:
    """Return the words of a command that reads bits."""
    for bit in bits:
        yield from ("GET", "u1", bit)
