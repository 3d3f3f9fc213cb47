"""By which rules a spider's requests in all ledgers were looked up: others may move them.

An entry is in the ledger of the window that its page had. As long as that filter remembers the
page, the entry stays, also if the settings do not have the window any more: the rule may come back.
When the rules change, an idle crawl looks all entries up in the windows that they have now. What is
new there is crawled, and so it is in that window's ledger as well.
"""

from collections.abc import Iterable
from functools import partial

from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol import ledger_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import Listing
from scrapy_bloom.crawl.filters import Filters


class LedgerRules:
    """The rules of a spider, and those that are noted in the main filter.

    Args:
        tag: the spider's.
        digest: of its rules.
    """

    def __init__(self, tag: str, digest: str) -> None:
        self._tag, self._digest = tag, digest

    def unread(self, main: BloomFilter, others: Filters, windows: Iterable[str]) -> frozenset[str]:
        """Return windows with requests that were not looked up by these rules.

        Under the same rules, these are of another process, which still has former rules: it has
        added them since, and they are not packed.

        Raises:
            StorageError: the server does not answer.
        """
        is_known, found = self._note(main) == self._digest, set[str]()
        for window in windows:
            listing = self.listing(others.by_window[window])
            if listing.has_entries or (listing.members and not is_known):
                found.add(window)
        return frozenset(found)

    def listing(self, bloom: BloomFilter) -> Listing:
        """Return what there is in the ledger of a filter.

        Raises:
            StorageError: the server does not answer.
        """
        return bloom.run(partial(ledger_protocol.chunks, tag=self._tag))

    def have_changed(self, filters: Filters) -> bool:
        """Whether there are requests to look up because they may have other windows now.

        Raises:
            StorageError: the server does not answer.
        """
        note = self._note(filters.default)
        windows = filters.left if note == self._digest else filters.by_window
        if self.unread(filters.default, filters, windows):
            return True
        if note != self._digest:
            self._write(filters.default, note, self._digest)
        return False

    def begin(self, filters: Filters, token: str) -> str:
        """Note that requests are being looked up; return the note.

        Raises:
            StorageError: the server does not answer.
        """
        self._write(filters.default, self._note(filters.default), token)
        return token

    def end(self, filters: Filters, token: str) -> None:
        """Note that all requests have been looked up, if no process with other rules was there.

        Raises:
            StorageError: the server does not answer.
        """
        self._write(filters.default, token, self._digest)

    def void_others(self, filters: Filters, token: str) -> None:
        """Delete the note of other rules, before entries are packed that they do not know.

        Raises:
            StorageError: the server does not answer.
        """
        note = self._note(filters.default)
        if note not in ("", self._digest, token):
            self._write(filters.default, note, "")

    def _note(self, main: BloomFilter) -> str:
        return main.run(partial(ledger_protocol.rules, tag=self._tag))

    def _write(self, main: BloomFilter, before: str, now: str) -> None:
        main.run(partial(ledger_protocol.note_rules, tag=self._tag, before=before, now=now))
