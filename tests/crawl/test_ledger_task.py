"""The background thread's part of the ledger: it packs entries, and gives what is due."""

import secrets
from collections.abc import Sequence
from typing import Any, cast

import pytest
import redis
from support.clock import MovedServer

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model import ledger
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol import claim_protocol
from scrapy_bloom.bloom.protocol.ledger_protocol import Kept
from scrapy_bloom.crawl.claims.ledger_rules import LedgerRules
from scrapy_bloom.crawl.claims.ledger_task import LedgerTask
from scrapy_bloom.crawl.filters import Filters
from scrapy_bloom.settings import DEFAULT

TAG, OWNER, KEYS = "12345678", "w-ours", Keys("k")


class Events:
    """Notes what the crawl's thread receives."""

    def __init__(self) -> None:
        self.given: list[Sequence[str]] = []
        self.ends = 0

    def due(self, requests: Sequence[str]) -> None:
        self.given.append(requests)

    def none_due(self) -> None:
        self.ends += 1


class Stand:
    """A task, and the filter whose ledger it keeps."""

    def __init__(self, server: MovedServer, client: redis.Redis) -> None:
        self.server, self.client, self.events = server, client, Events()
        self.bloom = BloomFilter(client, "k", blocks=1, capacity=10_000, window="6 months")
        self.filters = Filters({DEFAULT: self.bloom}, cast("Any", None))
        self.bloom.open()
        self.task = self.new_task()

    def new_task(self, rules: str = "rules") -> LedgerTask:
        """Return the task of a process that has these rules."""
        rules_of = LedgerRules(TAG, rules)
        return LedgerTask(TAG, self.events, lambda call: call(), secrets.token_hex, rules_of)

    def crawl(self, count: int, first: int = 0) -> None:
        items = [number.to_bytes(20, "big") for number in range(first, first + count)]
        texts = [f'{{"url":"http://x/{n}","meta":{{"a":1,"bloom_claims":{{"b":2}}}}}}' for n in
                 range(first, first + count)]  # fmt: skip
        self.bloom.run(lambda s: claim_protocol.claim(s, items, texts, OWNER, str(first)))
        kept = Kept(TAG, {})
        self.bloom.run(lambda s: claim_protocol.confirm(s, items, [OWNER], kept=kept))

    def run(self) -> None:
        """Run the task until it has nothing to do."""
        while self.task.run(self.filters) == 0:
            pass

    def forget(self) -> None:
        for _ in range(6):
            self.server.move(10)
            self.bloom.rotate()

    def entries(self) -> int:
        return self.client.llen(KEYS.entries(0))

    def chunks(self) -> int:
        return self.client.hlen(KEYS.chunks(0))


@pytest.fixture
def stand(moved: MovedServer) -> Any:
    with moved.client() as client:
        yield Stand(moved, client)


def test_nothing_is_done_before_it_is_asked_for(stand: Stand) -> None:
    stand.crawl(ledger.CHUNK_ENTRIES)
    round_trips = stand.bloom.round_trips
    stand.run()
    assert stand.bloom.round_trips == round_trips
    assert stand.entries() == ledger.CHUNK_ENTRIES


def test_many_entries_are_packed_while_the_crawl_goes_on(stand: Stand) -> None:
    stand.crawl(2 * ledger.CHUNK_ENTRIES + 5)
    stand.task.look_for_entries()
    stand.run()
    assert (stand.entries(), stand.chunks()) == (5, 2)
    stand.task.look_for_entries()
    stand.run()
    assert (stand.entries(), stand.chunks()) == (5, 2)


def test_what_is_due_is_given_chunk_by_chunk(stand: Stand) -> None:
    stand.crawl(ledger.CHUNK_ENTRIES + 5)
    stand.forget()
    task, given = stand.task, stand.events.given
    task.want()
    stand.run()
    stand.run()
    assert len(given) == 1, "it waits until the crawl wants more"
    assert stand.chunks() == 2, "until its requests are claimed, a chunk stays"
    task.proposed()
    stand.run()
    assert (len(given), stand.chunks()) == (1, 1)
    task.want()
    stand.run()
    task.proposed()
    task.end(stand.filters)
    assert stand.chunks() == 0
    texts = sorted(text for part in given for text in part)
    assert len(texts) == ledger.CHUNK_ENTRIES + 5
    assert texts[0] == '{"url":"http://x/0","meta":{"a":1}}'
    task.want()
    stand.run()
    assert (len(given), stand.events.ends) == (2, 1)


def test_a_chunk_that_was_not_proposed_is_given_again(stand: Stand) -> None:
    """The server failed while its requests were looked up."""
    stand.crawl(5)
    stand.forget()
    for _ in range(2):
        stand.task.want()
        stand.run()
        stand.task.recovered()
    assert len(stand.events.given) == 2
    assert stand.chunks() == 1


def test_a_crawl_that_is_killed_leaves_its_chunk(stand: Stand) -> None:
    stand.crawl(5)
    stand.forget()
    stand.task.want()
    stand.run()
    stand.task.end(stand.filters)
    assert stand.chunks() == 1


def test_damaged_chunks_are_deleted(stand: Stand) -> None:
    stand.crawl(5)
    stand.forget()
    for number in range(3):
        stand.client.zadd(KEYS.ledger(0), {f"{TAG} x{number}": 1})
        stand.client.hset(KEYS.chunks(0), f"{TAG} x{number}", b"garbage")
    stand.task.want()
    stand.run()
    stand.task.proposed()
    stand.task.want()
    stand.run()
    assert len(stand.events.given) == 1
    assert stand.events.ends == 1
    assert not stand.client.exists(KEYS.ledger(0))


# -- rules that change --


class Window:
    """A stand whose main filter has a second one beside it, of a window that rules may have."""

    def __init__(self, stand: Stand, client: redis.Redis) -> None:
        self.stand = stand
        self.other = BloomFilter(client, "k:1-year", blocks=1, capacity=10_000, window="1 year")
        self.other.open()
        both = {DEFAULT: stand.bloom, "1-year": self.other}
        #: The filters of a process that has the rule, and of one that has it no more.
        self.before = Filters(both, cast("Any", None))
        self.after = Filters(both, cast("Any", None), left=["1-year"])

    def crawl(self, first: int) -> None:
        """Record five pages in the second filter."""
        main, self.stand.bloom = self.stand.bloom, self.other
        self.stand.crawl(5, first)
        self.stand.bloom = main

    def moved(self, task: LedgerTask, filters: Filters) -> int:
        """Open and run a task until nothing is left; return how many requests it has given."""
        given = self.stand.events.given
        given.clear()
        task.begin(filters)
        for _ in range(5):
            task.want()
            while task.run(filters) == 0:
                pass
            task.proposed()
        return sum(map(len, given))


@pytest.fixture
def window(stand: Stand) -> Window:
    return Window(stand, stand.client)


def test_requests_are_looked_up_once_after_the_rules_have_changed(window: Window) -> None:
    new_task = window.stand.new_task
    assert window.moved(new_task("a"), window.before) == 0, "there are none"
    window.crawl(0)
    window.stand.crawl(7, 100)
    assert window.moved(new_task("a"), window.before) == 0
    assert window.moved(new_task("b"), window.after) == 12
    assert window.moved(new_task("b"), window.after) == 0
    assert window.moved(new_task("a"), window.before) == 12, "they stay where they are"


def test_what_a_process_with_former_rules_adds_later_is_looked_up_too(window: Window) -> None:
    former, new_task = window.stand.new_task("a"), window.stand.new_task
    former.begin(window.before)
    window.crawl(0)
    assert window.moved(new_task("b"), window.after) == 5
    window.crawl(10)
    assert window.moved(new_task("b"), window.after) == 10
    window.crawl(20)
    window.stand.server.move(10)
    window.other.rotate()
    former.look_for_entries()
    former.run(window.before)
    assert window.stand.client.llen("{k:1-year:0}:ledger:new") == 0, "it has packed them"
    assert window.moved(new_task("b"), window.after) == 15


def test_a_process_with_former_rules_that_packs_in_between_voids_the_note(window: Window) -> None:
    former, mover = window.stand.new_task("a"), window.stand.new_task("b")
    former.begin(window.before)
    window.crawl(0)
    mover.begin(window.after)
    mover.want()
    while mover.run(window.after) == 0:
        pass
    window.crawl(10)
    former.look_for_entries()
    former.run(window.before)
    for _ in range(3):
        mover.proposed()
        mover.want()
        mover.run(window.after)
    assert window.moved(window.stand.new_task("b"), window.after) == 10


def test_requests_that_were_not_answered_are_looked_up_again(window: Window) -> None:
    window.stand.new_task("a").begin(window.before)
    window.crawl(0)
    task, given = window.stand.new_task("b"), window.stand.events.given
    task.begin(window.after)
    for _ in range(2):
        task.want()
        while task.run(window.after) == 0:
            pass
    assert [len(part) for part in given] == [5, 5]
    task.proposed()
    task.want()
    task.run(window.after)
    assert window.stand.events.ends == 1
