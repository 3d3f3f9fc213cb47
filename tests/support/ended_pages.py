"""Pages of a crawl that end, without an engine and a server."""

from types import SimpleNamespace
from typing import Any

from scrapy_bloom.bloom.protocol.session import Key
from scrapy_bloom.crawl.endings import Endings, Page
from scrapy_bloom.crawl.local import LocalUrls
from scrapy_bloom.crawl.monitor import Monitor
from scrapy_bloom.crawl.ops import Op, OpKind
from scrapy_bloom.crawl.rule import Known

CONFIRM, FAIL, STOP, DROP = OpKind.CONFIRM, OpKind.FAIL, OpKind.STOP, OpKind.DROP


class Crawl:
    """Pages of a crawl, which end. Pages and their URLs have the same names.

    Args:
        queue: "" in memory.
        items_only: whether pages without items are new again.
    """

    def __init__(self, queue: str = "", *, items_only: bool = False) -> None:
        self.local, self.ops, self.stats = LocalUrls(), list[Op](), dict[str, int]()
        context: Any = SimpleNamespace(
            local=self.local,
            monitor=Monitor(None),
            settings=SimpleNamespace(items_only=items_only),
            me=SimpleNamespace(queue=queue),
        )
        self.endings = Endings(context, self.ops.append)

    def page(self, name: str, *, window: str = "default", is_stored: bool = False) -> Page:
        """Return a page that is in progress; its request is a lambda's, unless it's stored."""
        claim = key(name, window)
        if not is_stored:
            self.endings.here[claim] = []
        return Page({claim: "{}" if is_stored else ""}, outcome=None)

    def waiting(self, name: str, *claims: str) -> Page:
        """Return a stored page that waits for others."""
        page = self.page(name, is_stored=True)
        for claim in claims:
            self.endings.wait(page, key(claim))
        return page

    def end(self, *pages: Page, error: str = "") -> None:
        """End the callbacks of pages."""
        for page in pages:
            page.error = page.error or error
            page.outcome = FAIL if page.error else CONFIRM
            self.endings.finish(page)

    @property
    def ended(self) -> list[tuple[str, str]]:
        """What was written: what becomes of which page."""
        return [(op.kind.name, op.key[1].decode()) for op in self.ops]

    def known(self, name: str, window: str = "default") -> Known | None:
        return self.local.known(key(name, window))


def key(name: str, window: str = "default") -> Key:
    return window, name.encode()
