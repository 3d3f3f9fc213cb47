"""Ends pages: settles their claims, once everything that they led to is safe (see ``rule.py``).

A page waits for everything that can't be stored. A request that JSON can't hold exists in this
process only, so the page that yielded it is settled after it, and fails with it. So is a page whose
items are not stored yet, or whose redirect leads to a page that is in progress.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol.claims import ASTRAY, NewClaim
from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.crawl.context import Context
from scrapy_bloom.crawl.ops import Op, OpKind
from scrapy_bloom.crawl.rule import Effect, Known, effect
from scrapy_bloom.rules import RUN

#: Claims of requests that are not looked up are named so, and never recorded.
ONCE = b"once:"
#: Pages that wait for something, at most: 50 MB. Beyond it, the oldest are left to the next run.
MAX_WAITING = 100_000
#: Pages that wait for each other, among which a circle is looked for.
MAX_CHAIN = 256
_UNPRINTABLE = re.compile("[^!-~]+")
_STATS = {
    OpKind.CONFIRM: "crawled",
    OpKind.DROP: "dropped",
    OpKind.FAIL: "failed",
    OpKind.STOP: "repeated",
}


@dataclass(slots=True, eq=False, weakref_slot=True)
class Page:
    """A request that has left the scheduler and is not settled yet.

    Args:
        claims: are settled with it; claim -> its request as it's stored, "" if it isn't.
        epoch: of the server, in which it left the scheduler.
        error: why links or items of it may be lost.
        times: how often it has to finish: its callback may have yielded the request again.
        waits: requests that cannot be stored, feeds and pipelines that it is settled after.
        outcome: how it is settled; None until its callback is done.
        target: where its request has led, if that isn't new.
        has_item: whether it has yielded an item, or counts as if it had.
        is_left: whether its claims stay, for the next run.
    """

    claims: dict[Key, str]
    epoch: int = 0
    error: str = ""
    times: int = 1
    waits: int = 0
    outcome: OpKind | None = None
    target: Key | None = None
    has_item: bool = False
    is_left: bool = False

    def fail(self, error: str) -> None:
        """Note why it isn't crawled; the first reason counts."""
        self.error = self.error or error
        if self.outcome is OpKind.CONFIRM:
            self.outcome = OpKind.FAIL

    def stand_for(self, other: "Page") -> None:
        """Settle the claims of another page with its own."""
        self.claims |= other.claims
        self.epoch = min(self.epoch, other.epoch)
        self.has_item |= other.has_item


@dataclass(slots=True, eq=False)
class Joint:
    """A request that shares objects with others. Those that have changed some end together.

    Args:
        page: stands for all of them that have ended.
        has_changed: returns whether the request's own objects have changed since it was yielded.
        is_passed_on: whether the page that has yielded it shares them, too, so it ends with it.
    """

    page: Page
    has_changed: Callable[[], bool]
    is_passed_on: bool = False


class Endings:
    """Decides when and how pages end.

    Args:
        context: the objects that all parts use.
        put: queues an op.

    Attributes:
        here: claims in progress in this process whose requests aren't stored, each with the pages
            that wait for it.
        targets: those of them that only a redirect has led to.
        once: claims in progress of requests that aren't looked up.
        joints: claims of requests that may have to end together with others.
        dropped: fields of claims whose requests something has dropped in this run.
        incomplete: pages that are crawled, and wait for something, in the order in which they began
            to.
    """

    def __init__(self, context: Context, put: Callable[[Op], None]) -> None:
        self._local, self._monitor, self._put = context.local, context.monitor, put
        self._only_items = context.settings.items_only
        self._has_own_queue = not context.me.queue
        self.here: dict[Key, list[Page]] = {}
        self.targets: set[Key] = set()
        self.once: set[Key] = set()
        self.joints: dict[Key, Joint] = {}
        self.dropped: set[str] = set()
        self.incomplete: dict[Page, None] = {}

    # -- the rule --

    def led_to(self, page: Page, key: Key, known: Known, request: str | None) -> None:
        """Note that a page has led to a URL that isn't new.

        Args:
            page: the page.
            key: of the URL.
            known: about the URL.
            request: for it, as it's stored; "" if it can't be, None if the page's own led there.
        """
        # Requests that share an object have to end together: a stored one would end alone.
        has_request = bool(request) and key[0] != RUN and key not in self.joints
        found = effect(known, is_redirect=request is None, has_request=has_request)
        if found is Effect.WAIT and key not in self.here:
            found = Effect.LEAVE  # it has ended since the page's links were looked up
        if found is Effect.STORE and request:
            self.store(key, request)
        elif found is Effect.WAIT and not _is_circle(self.here, page, key):
            self.wait(page, key)
        elif found is Effect.LEAVE:
            page.is_left = True
        elif found is Effect.FAIL:
            is_own = key in page.claims
            page.fail("is-a-duplicate" if is_own else "the-redirect-leads-to-a-failed-page")
        elif found is Effect.DROP:
            page.outcome = OpKind.DROP

    def store(self, key: Key, request: str) -> None:
        """Give a claim its request: nobody has to wait for it any more."""
        self._put(Op(OpKind.CLAIM, NewClaim.of(key, request)))
        if key not in self.here:
            return
        self._local.see(key, is_own=True)
        if joint := self.joints.pop(key, None):
            joint.page.waits -= 1
        for page in self.here.pop(key):
            self.arrived(page)

    def lose(self, key: Key) -> None:
        """Note that the request of a claim was never scheduled: nobody can wait for it."""
        if key in self.here:
            for page in self.here.pop(key):
                page.is_left = True
                self.arrived(page)

    def wait(self, page: Page, key: Key) -> None:
        """Let a page wait for a claim."""
        if key not in page.claims:
            self.here[key].append(page)
            page.waits += 1

    def join(self, key: Key, joint: Joint) -> None:
        """Let a claim end together with others: their requests share an object."""
        self.joints[key] = joint
        joint.page.waits += 1

    # -- what pages wait for --

    def arrived(self, page: Page, error: str = "") -> None:
        """Let a page wait for one thing less, which may have failed."""
        page.waits -= 1
        if error:
            page.fail(error)
        self.finish(page)

    def finish(self, page: Page) -> None:
        """Settle a page, unless its callback isn't done, or it waits for something."""
        if page.outcome is None:
            return
        if page.is_left:
            self.incomplete.pop(page, None)
        elif page.waits:
            self.incomplete[page] = None
            if len(self.incomplete) > MAX_WAITING:
                self._leave(next(iter(self.incomplete)))
        else:
            self.settle(page)

    def _leave(self, page: Page) -> None:
        """Wait for a page no longer: its claims stay, and the next run crawls it again."""
        del self.incomplete[page]
        page.outcome, page.claims = None, {}
        self._monitor.count("undelivered")
        self._monitor.warn_once(
            "too-many-waiting",
            f"{MAX_WAITING:,} pages wait for items or requests, so the next run crawls the oldest "
            "ones again. Set FEED_EXPORT_BATCH_ITEM_COUNT to store items sooner",
        )

    def close(self) -> None:
        """Count pages that still wait: their claims stay, and the next run crawls them again."""
        for page in [page for page in self.incomplete if page.outcome is OpKind.FAIL]:
            self.settle(page)
        if left := len(self.incomplete):
            self._monitor.count("undelivered", count=left)
            message = f"{left:,} pages still wait for items to be stored or requests to be "
            message += "crawled, so the next run crawls these pages again"
            self._monitor.warn_once("undelivered", message)

    # -- settling --

    def settle(self, page: Page) -> None:
        """End a page's claims, then those of pages that waited for these only."""
        ending = [page]
        while ending:
            page = ending.pop()
            kind, page.outcome = page.outcome, None
            self.incomplete.pop(page, None)
            if kind is None:
                continue
            waiting = self._end_joint(page, kind) or self._end_claims(page, kind)
            ending += [one for one in waiting if one.outcome and not one.waits and not one.is_left]

    def _end_joint(self, page: Page, kind: OpKind) -> list[Page]:
        """End a page's claims with those that it shares objects with; [] if there are none."""
        joint = next((self.joints.pop(key) for key in page.claims if key in self.joints), None)
        if joint is None:
            return []
        joint.page.waits -= 1
        if kind not in (OpKind.CONFIRM, OpKind.DROP):
            joint.page.fail(page.error)
        if kind is OpKind.DROP or not joint.has_changed():
            return [joint.page, *self._end_claims(page, kind)]
        joint.page.stand_for(page)
        return [joint.page]

    def _end_claims(self, page: Page, kind: OpKind) -> list[Page]:
        """End a page's claims; return the pages that have waited for them."""
        found = []
        for key in [*page.claims]:
            waiting = self.here.pop(key, [])
            has_failed = kind in (OpKind.FAIL, OpKind.STOP)
            if waiting and has_failed and not page.claims[key] and self._has_own_queue:
                # They fail together: a kill in between would hide it from the page's retry.
                waiting[0].claims[key] = ""
                self._local.fail(key, is_astray=key in self.targets)
            else:
                self._end(key, kind, page)
            for one in waiting:
                one.waits -= 1
                if has_failed:  # only its page can yield the request again
                    one.fail("a-request-failed")
                elif kind is OpKind.DROP and one.target == key:
                    one.outcome = kind
            found += waiting
        return found

    def _end_here(self, key: Key, kind: OpKind, *, is_stored: bool) -> None:
        """Note how a URL of the window "run" ends, which only this process knows."""
        self.targets.discard(key)
        if kind is OpKind.CONFIRM:
            return
        self._local.forget(key)
        self._local.late.pop(key[1], None)
        if kind is OpKind.DROP:
            self._local.taken[key[1]] = Known.DROPPED
        elif is_stored:
            self._local.taken[key[1]] = Known.FAILED
        else:  # the page that yielded it yields it again
            self._local.taken.pop(key[1], None)

    def _end(self, key: Key, kind: OpKind, page: Page) -> None:
        window, item = key
        is_once = item.startswith(ONCE)
        if window == RUN:
            self._end_here(key, kind, is_stored=bool(page.claims[key]))
            return
        self.once.discard(key)
        self._monitor.count(_STATS[kind], window)
        if kind is OpKind.DROP:
            self.dropped.add(field_of(item))
        if kind is OpKind.CONFIRM and self._only_items and not (page.has_item or is_once):
            self._monitor.count("without_item", window)
            self._local.taken[item] = Known.RECORDED
            kind = OpKind.RELEASE
        elif kind is OpKind.CONFIRM and is_once:
            kind = OpKind.RELEASE
        elif kind is OpKind.DROP and not is_once:
            self._local.taken[item] = Known.DROPPED
        if kind is OpKind.CONFIRM:
            self._local.see(key, is_own=True)
        elif kind in (OpKind.FAIL, OpKind.STOP):
            # If it isn't stored, perhaps no page here has failed with it: its request may come out
            # of a queue that another run has put it into.
            self._local.fail(key, is_astray=key in self.targets or not page.claims[key])
        else:
            self._local.forget(key)
        reason = _UNPRINTABLE.sub("-", page.error)[:200]
        if key in self.targets:
            self.targets.discard(key)
            reason = f"{ASTRAY}{reason}"
        self._put(Op(kind, NewClaim(key, reason or "-", page.claims[key]), page.epoch))


def _is_circle(here: Mapping[Key, Sequence[Page]], page: Page, key: Key) -> bool:
    """Whether the page of a claim waits for a page, or may do so: too many pages do.

    The page that has yielded the claim waits for it then, but this one doesn't.
    """
    chain, found = [page], {page}  # those that wait for it, those that wait for them, and so on
    for one in chain:
        if key in one.claims or len(chain) > MAX_CHAIN:
            return True
        new = {two for claim in one.claims for two in here.get(claim, ())} - found
        chain += new
        found |= new
    return False
