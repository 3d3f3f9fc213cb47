"""Claims on real servers: made once, ended by their owners, found, taken over, confirmed."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from redis import Redis
from support.examples import examples
from support.filters import small
from support.outages import full
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.errors import LostError, RestartedError
from scrapy_bloom.bloom.protocol.claims import (
    AGAIN,
    DROPPED,
    FAILED,
    LEFT,
    MAX_ATTEMPTS,
    Again,
    Claims,
    NewClaim,
    StoredClaim,
)
from scrapy_bloom.bloom.protocol.rings import MAX_WAVE_CALLS
from scrapy_bloom.bloom.protocol.scripts import Reply
from scrapy_bloom.bloom.protocol.session import Key, Verdict

#: Servers differ in their hash tables, which scans walk over, in how they write numbers, and in
#: their Lua, which gets any bytes.
differs = pytest.mark.each_server

NEW, SEEN, CLAIMED = Verdict.NEW, Verdict.SEEN, Verdict.CLAIMED
UNSTORED, HAS_FAILED = Verdict.UNSTORED, Verdict.FAILED
OURS, THEIRS = "ours", "theirs"
A, B, C = b"a" * 20, b"b" * 20, b"c" * 20
HASH = "{shop:bloom:0}:claims:shop"


class Spider:
    """A spider's claims on a filter of one block."""

    def __init__(self, bloom: BloomFilter, name: str = "shop", cooldown: int = 600) -> None:
        self.bloom, self.claims = bloom, Claims(bloom.session, name, cooldown)

    def claim(
        self, *items: bytes, owner: str = OURS, nonce: str = "1", request: str | None = None
    ) -> list[Verdict]:
        texts = [text_of(item) if request is None else request for item in items]
        new = [NewClaim(key(item), nonce, one) for item, one in zip(items, texts, strict=True)]
        return self.bloom.run(self.claims.claim(new, owner, "worker"))

    def confirm(
        self, *items: bytes, owners: Sequence[str] = (OURS,), server: str = ""
    ) -> list[Verdict]:
        return self.bloom.run(self.claims.confirm([*map(key, items)], owners, server))

    def settle(self, *items: bytes, owner: str = OURS) -> None:
        self.bloom.run(self.claims.settle([*map(key, items)], [owner]))

    def fail(
        self,
        *items: bytes,
        owner: str = FAILED,
        seconds: int = 60,
        reason: str = "why",
        request: str = "",
        attempts: int = 1,
        ends_unstored: bool = False,
    ) -> None:
        waiting = [NewClaim(key(item), reason, request) for item in items]
        self.bloom.run(
            self.claims.wait(
                waiting, owner, seconds, attempts=attempts, ends_unstored=ends_unstored
            )
        )

    def leave(self, *claims: StoredClaim) -> int:
        return self.bloom.run(self.claims.leave(0, claims))

    def request(self, item: bytes) -> str:
        """Return the stored request of a claim."""
        place = 0, item.hex()
        return self.bloom.run(self.claims.find([place]))[place][1]

    def stored(self) -> dict[str, StoredClaim]:
        """Return all claims by their fields, as scans show them."""
        found, cursor = dict[str, StoredClaim](), "0"
        while True:
            cursor, _, page = self.bloom.run(self.claims.scan({0: cursor}, 10))[0]
            found |= {one.field: one for one in page}
            if cursor == "0":
                return found

    def only(self) -> StoredClaim:
        (claim,) = self.stored().values()
        return claim


def key(item: bytes) -> Key:
    return "default", item


def text_of(item: bytes) -> str:
    return f'{{"of": "{item.hex()}"}}'


@pytest.fixture
def bloom(client: Redis) -> BloomFilter:
    return small(client, blocks=1)


@pytest.fixture
def spider(bloom: BloomFilter) -> Spider:
    return Spider(bloom)


# -- making claims --


def test_one_claim_is_for_one_and_the_same_call_again_has_the_same_answer(spider: Spider) -> None:
    for _ in range(2):
        assert spider.claim(A, B) == [NEW, NEW]
    assert spider.claim(A, nonce="2") == [CLAIMED]
    assert spider.claim(A, owner=THEIRS) == [CLAIMED]
    spider.bloom.add(C)
    assert spider.claim(A, C, nonce="3") == [CLAIMED, SEEN]
    assert spider.stored().keys() == {A.hex(), B.hex()}


def test_what_is_in_any_bitmap_is_not_claimed(client: Redis) -> None:
    spider, items = Spider(small(client, blocks=1, capacity=9)), [b"%d" % n for n in range(99)]
    spider.bloom.extend(items)
    assert spider.claim(*items, A) == [SEEN] * 99 + [NEW]


def test_any_number_of_claims_is_read_a_bounded_number_at_a_time(spider: Spider) -> None:
    """A reply for each of them waits in the memory of the server."""
    operation = spider.claims.find([(0, f"{number:x}") for number in range(1_000)])
    waves = [len(next(operation))]
    with suppress(StopIteration):
        while True:
            waves.append(len(operation.send([Reply("ok")] * waves[-1])))
    assert sum(waves) == 1_000
    assert max(waves) <= 256


def test_spiders_do_not_see_each_others_claims(bloom: BloomFilter, spider: Spider) -> None:
    other = Spider(bloom, "other")
    assert spider.claim(A) == other.claim(A, owner=THEIRS) == [NEW]
    assert other.confirm(A, owners=[THEIRS]) == [NEW]
    assert spider.claim(A, nonce="2") == [SEEN]


def test_a_claim_says_whose_it_is_since_when_and_how_long_its_request_is(
    client: Redis, spider: Spider
) -> None:
    before = client.time()[0]
    spider.claim(A)
    claim = spider.only()
    assert (claim.field, claim.owner, claim.nonce, claim.attempts) == (A.hex(), OURS, "1", 0)
    assert before <= claim.time <= client.time()[0]
    found = spider.bloom.run(spider.claims.find([(0, A.hex()), (0, B.hex())]))
    assert [*found] == [(0, A.hex())]
    one, request = found[0, A.hex()]
    assert (one, request) == (claim, text_of(A))
    assert claim.length == len(request)
    spider.claim(B, request="")  # ends with its worker, because it isn't stored
    assert (spider.stored()[B.hex()].owner, spider.stored()[B.hex()].length) == ("worker", 0)


def test_keeping_claims_what_is_remembered_too_and_a_second_time_changes_nothing(
    spider: Spider,
) -> None:
    spider.bloom.add(A)
    for owner in (OURS, THEIRS):
        claims = [NewClaim(key(A), "1", "{}"), NewClaim(key(B), "1", "{}")]
        spider.bloom.run(spider.claims.keep(claims, owner))
    assert {one.owner for one in spider.stored().values()} == {OURS}
    assert spider.stored().keys() == {A.hex(), B.hex()}


@differs
def test_many_claims_are_made_found_and_ended_over_all_blocks(client: Redis) -> None:
    spider = Spider(small(client, blocks=7, capacity=100))
    items = [b"%d" % number for number in range(2_000)]
    assert spider.claim(*items) == [NEW] * 2_000
    pages = spider.bloom.run(spider.claims.scan(dict.fromkeys(range(7), "0"), 10_000))
    assert sum(len(page) for _, _, page in pages.values()) == 2_000
    places = [(block, one.field) for block, (_, _, page) in pages.items() for one in page]
    assert spider.bloom.run(spider.claims.find(places)).keys() == set(places)
    assert spider.confirm(*items[:1_500]) == [NEW] * 1_500  # and it grows
    spider.settle(*items[1_500:])
    assert not client.keys("*claims*")
    assert spider.bloom.contains(items) == [True] * 1_500 + [False] * 500


# -- requests that are stored later --


def test_a_verdict_says_whether_the_request_of_a_claim_is_stored(spider: Spider) -> None:
    spider.claim(A)
    spider.claim(B, request="")
    for _ in range(2):
        assert spider.claim(A, B, nonce="2", request="") == [CLAIMED, UNSTORED]
    spider.fail(A, B)
    assert spider.claim(A, B, nonce="2", request="") == [HAS_FAILED, HAS_FAILED]
    assert (spider.stored()[A.hex()].length > 0, spider.stored()[B.hex()].length) == (True, 0)


@pytest.mark.parametrize("caller", ["worker", THEIRS])
@pytest.mark.parametrize(
    ("has_failed", "verdict"), [(False, CLAIMED), (True, HAS_FAILED)], ids=["claimed", "failed"]
)
def test_a_claim_without_a_request_gets_that_of_a_link(
    spider: Spider, caller: str, has_failed: bool, verdict: Verdict
) -> None:
    """It stays whose it is, as it is: only the next run finds more."""
    spider.claim(A, request="")
    if has_failed:
        spider.fail(A)
    before = spider.only()
    assert spider.claim(A, owner=caller, nonce="2", request="first") == [verdict]
    assert spider.claim(A, owner=caller, nonce="3", request="second") == [verdict]
    assert spider.claim(A, owner=caller, nonce="4", request="") == [verdict]
    assert spider.only() == replace(before, length=len("first"))
    assert spider.request(A) == "first"


def test_a_caller_without_a_request_leaves_the_stored_one_in_a_claim_that_it_gets(
    spider: Spider,
) -> None:
    spider.claim(A)
    spider.fail(A, seconds=0)
    assert spider.claim(A, nonce="2", request="") == [NEW]
    assert (spider.only().owner, spider.request(A)) == ("worker", text_of(A))
    spider.fail(A, seconds=0)
    assert spider.claim(A, nonce="3", request="newer") == [NEW]
    assert (spider.only().owner, spider.request(A)) == (OURS, "newer")


# -- ending them --


def test_a_page_is_remembered_and_its_claim_ended_in_one_round_trip(spider: Spider) -> None:
    spider.claim(A, B, b"first")
    spider.confirm(b"first")
    before = spider.bloom.transport.round_trips
    assert spider.confirm(A) == [NEW]
    assert spider.bloom.transport.round_trips == before + 1
    assert spider.bloom.contains([A, B]) == [True, False]
    assert spider.only().field == B.hex()
    spider.bloom.add(B)
    assert spider.confirm(A, B) == [SEEN, SEEN]
    assert not spider.stored()


def test_a_page_that_another_claims_or_that_failed_stays_new(spider: Spider) -> None:
    """One that has no claim any more is remembered: nobody else crawls it."""
    spider.claim(A, owner=THEIRS)
    spider.claim(B)
    spider.fail(B, seconds=0)
    assert spider.confirm(A, B, C) == [CLAIMED, CLAIMED, NEW]
    assert spider.bloom.contains([A, B, C]) == [False, False, True]
    assert spider.stored().keys() == {A.hex(), B.hex()}
    assert spider.confirm(A, B, owners=[OURS, THEIRS, FAILED]) == [NEW, NEW]


@differs
def test_another_process_of_the_server_confirms_nothing(spider: Spider, client: Redis) -> None:
    """It may have lost the claims of the page's links."""
    spider.claim(A)
    with pytest.raises(RestartedError, match="restarted, or replaced by a replica"):
        spider.confirm(A, server="0" * 40)
    assert (spider.only().field, A in spider.bloom) == (A.hex(), False)
    assert spider.confirm(A, server=client.info("server")["run_id"]) == [NEW]


def lose_all(client: Redis) -> None:
    client.flushall()


def lose_bitmap(client: Redis) -> None:
    assert client.delete(*client.keys("*:default:*"))


def lose_ring(client: Redis) -> None:
    assert client.delete("{shop:bloom:0}:ring")


@pytest.mark.parametrize("is_noticed", [False, True], ids=["", "another-notices-first"])
@pytest.mark.parametrize("lose", [lose_all, lose_bitmap, lose_ring])
def test_a_page_is_not_confirmed_when_a_part_of_the_filter_was_lost(
    bloom: BloomFilter,
    spider: Spider,
    client: Redis,
    lose: Callable[[Redis], None],
    is_noticed: bool,
) -> None:
    """The URLs that the page led to may have been recorded there."""
    spider.claim(A, B, C)
    spider.confirm(C)
    spider.bloom.add(b"other")
    lose(client)
    if is_noticed:
        small(client, blocks=1).add("another crawl's")
    left = spider.stored()
    with pytest.raises(LostError, match="a part of the filter was evicted or deleted"):
        spider.confirm(A, B)
    assert spider.bloom.contains([A, B]) == [False, False]
    assert spider.stored() == left
    assert spider.confirm(A, B) == [NEW, NEW], "it's whole again"


def test_only_owners_end_claims(spider: Spider) -> None:
    spider.claim(A)
    for owner in (THEIRS, OURS[:-1], "%S+", ""):
        spider.settle(A, owner=owner)
    assert spider.only().owner == OURS
    spider.settle(A, B)
    assert not spider.stored()


def test_a_page_that_failed_waits_and_is_then_claimed_again(spider: Spider, client: Redis) -> None:
    spider.claim(A, B)
    spider.fail(A, B, reason="503")
    claim = spider.stored()[A.hex()]
    assert (claim.owner, claim.nonce, claim.attempts, claim.has_failed) == (FAILED, "503", 1, True)
    assert claim.length > 0
    assert 50 < claim.time - client.time()[0] <= 60
    assert spider.claim(A, nonce="2") == [HAS_FAILED]
    spider.fail(B, seconds=0)
    assert spider.claim(B, nonce="2") == [NEW]
    assert spider.stored()[B.hex()].attempts == 1
    # One that waits longer than any would have failed while the clock was ahead.
    spider.fail(A, seconds=5_000)
    assert spider.claim(A, nonce="2") == [NEW]


def test_a_page_that_failed_waits_whoever_has_its_claim(spider: Spider) -> None:
    """The other may have taken a request for a duplicate that was lost with this failure."""
    spider.claim(A, owner=THEIRS)
    spider.fail(A)
    assert spider.only().owner == FAILED
    assert spider.confirm(A, owners=(THEIRS,)) == [CLAIMED]
    assert A not in spider.bloom


def test_a_failure_that_is_told_twice_counts_once(spider: Spider) -> None:
    """The first reply may have been lost. Whoever fetches the page again claims it before."""
    for attempts in (1, 2):
        assert spider.claim(A, nonce=str(attempts)) == [NEW]
        for _ in range(2):
            spider.fail(A, seconds=0)
            assert spider.only().attempts == attempts


def test_a_failed_page_keeps_its_stored_request(spider: Spider) -> None:
    spider.claim(A)
    spider.claim(B, request="")
    spider.fail(A, B, request="the caller's")
    assert (spider.request(A), spider.request(B)) == (text_of(A), "the caller's")


def test_a_failed_page_whose_claim_the_server_has_lost_is_pending_again(
    spider: Spider, client: Redis
) -> None:
    """Without a request it isn't: no run could crawl it."""
    spider.claim(A, B)
    client.delete(HASH)
    spider.fail(A, owner="-.domain=a", request=text_of(A))
    spider.fail(B)
    claim = spider.only()
    assert (claim.field, claim.owner, claim.attempts) == (A.hex(), "-.domain=a", 1)
    assert spider.request(A) == text_of(A)


def test_a_page_may_wait_without_having_failed(spider: Spider) -> None:
    """Nobody takes one that a worker has meanwhile."""
    spider.claim(A, B)
    spider.fail(A, owner="-.domain=a", seconds=0, reason=DROPPED, attempts=0)
    spider.fail(B, owner="worker", seconds=0, reason="lost-by-server", attempts=0)
    claims = spider.stored()
    assert {one.attempts for one in claims.values()} == {0}
    assert not any(one.has_failed for one in claims.values())
    assert spider.claim(A, B, nonce="2") == [NEW, CLAIMED]


def test_claims_without_a_request_may_end_where_others_wait(spider: Spider) -> None:
    """The page that has yielded their requests yields them again."""
    spider.claim(A)
    spider.claim(B, C, request="")
    spider.fail(A, B, ends_unstored=True)
    spider.fail(C, request="{}", ends_unstored=True)
    assert spider.stored().keys() == {A.hex(), C.hex()}


def test_a_page_that_has_failed_often_is_given_up_and_keeps_its_request(spider: Spider) -> None:
    for attempt in range(MAX_ATTEMPTS):
        assert spider.claim(A, nonce=str(attempt)) == [NEW]
        assert not spider.only().is_given_up
        spider.fail(A, seconds=0)
    claim = spider.only()
    assert (claim.attempts, claim.is_given_up, claim.length > 0) == (MAX_ATTEMPTS, True, True)
    assert spider.claim(A, nonce="link") == [NEW]
    assert (spider.only().attempts, spider.only().is_given_up) == (MAX_ATTEMPTS, False)


# -- taking them over --


def test_claims_are_taken_from_the_owner_that_was_seen_and_from_nobody_else(
    spider: Spider,
) -> None:
    spider.claim(A, B, owner="dead")
    claims = [*spider.stored().values()]
    taken = spider.bloom.run(spider.claims.take(0, claims, OURS, "n"))
    assert taken == {item.hex(): text_of(item) for item in (A, B)}
    assert {(one.owner, one.nonce) for one in spider.stored().values()} == {(OURS, "n")}
    assert spider.bloom.run(spider.claims.take(0, claims, THEIRS, "n")) == {}


def test_a_page_that_is_taken_over_keeps_its_attempts(spider: Spider) -> None:
    spider.claim(A)
    spider.fail(A, seconds=0)
    spider.bloom.run(spider.claims.take(0, [spider.only()], OURS, "n"))
    assert (spider.only().owner, spider.only().attempts) == (OURS, 1)


def test_an_owner_is_not_another_one_whose_name_is_a_part_of_its_own(spider: Spider) -> None:
    spider.claim(A, owner="w1")
    assert spider.confirm(A, owners=["w12", "w10"]) == [CLAIMED]
    spider.settle(A, owner="w12")
    assert spider.only().owner == "w1"


@pytest.mark.parametrize("blocks", [1, MAX_WAVE_CALLS + 1])
def test_claims_of_all_shards_are_counted(client: Redis, blocks: int) -> None:
    spider = Spider(small(client, blocks=blocks))
    spider.claim(*(bytes([number]) for number in range(200)))
    assert spider.bloom.run(spider.claims.count()) == 200


def test_a_full_server_notes_how_pages_end(server: Server, client: Redis, spider: Spider) -> None:
    items = [bytes([number]) for number in range(6)]
    spider.claim(*items)
    with full(server):
        spider.fail(items[0])
        spider.settle(items[1])
        assert spider.confirm(items[2]) == [NEW]
        stored = spider.stored()
        assert spider.leave(stored[items[3].hex()]) == 0
        spider.bloom.run(spider.claims.take(0, [stored[items[4].hex()]], THEIRS, "n"))
        spider.bloom.run(spider.claims.beat("w1", 60))
    owners = {field: one.owner for field, one in spider.stored().items()}
    waiting = dict.fromkeys((items[0].hex(), items[3].hex()), FAILED)
    assert owners == waiting | {items[4].hex(): THEIRS, items[5].hex(): OURS}


def test_what_comes_out_of_a_shared_queue_is_held_by_who_took_it(spider: Spider) -> None:
    spider.claim(A, owner="queue")
    spider.claim(B)
    spider.fail(B)
    spider.bloom.run(spider.claims.hold([key(A), key(B), key(C)], THEIRS))
    owners = {field: one.owner for field, one in spider.stored().items()}
    assert owners == {A.hex(): THEIRS, B.hex(): FAILED}


def test_what_was_left_is_held_by_who_took_it_out_of_a_queue_too(spider: Spider) -> None:
    """It was freed while its request was in the queue; one that failed isn't there any more."""
    reasons = {A: LEFT, B: DROPPED, C: "HTTP-503"}
    spider.claim(*reasons)
    for item, reason in reasons.items():
        spider.fail(item, reason=reason, seconds=0)
    spider.bloom.run(spider.claims.hold([*map(key, reasons)], THEIRS))
    owners = {field: one.owner for field, one in spider.stored().items()}
    assert owners == {A.hex(): THEIRS, B.hex(): FAILED, C.hex(): FAILED}
    assert spider.request(A) == text_of(A)


def test_urls_are_crawled_again_although_they_are_remembered_or_have_failed(spider: Spider) -> None:
    def again(request: str, *items: bytes, replaces: bool = False) -> list[Again]:
        places = {(0, item.hex()): request for item in items}
        return [*spider.bloom.run(spider.claims.again(places, replaces=replaces)).values()]

    spider.bloom.add(A)
    spider.claim(B, C)
    spider.fail(B, seconds=500)
    assert again("", A, B, C) == [Again.NONE, Again.RETRIED, Again.PENDING]
    assert again("{}", A, B, C) == [Again.READY, Again.RETRIED, Again.PENDING]
    claims = spider.stored()
    assert (claims[A.hex()].owner, claims[A.hex()].nonce) == (FAILED, AGAIN)
    assert (claims[A.hex()].has_failed, claims[B.hex()].has_failed) == (False, True)
    assert claims[B.hex()].attempts == 0
    assert claims[B.hex()].length > 2, "it keeps its own request"
    assert again("{}", B, replaces=True) == [Again.RETRIED]
    assert spider.stored()[B.hex()].length == 2


# -- freeing those of workers that have ended --


def test_a_claim_that_is_freed_keeps_its_arguments_request_and_attempts(
    spider: Spider, client: Redis
) -> None:
    owners = {A: "w1.domain=a", B: "w1.", C: "w1"}
    for item, owner in owners.items():
        spider.claim(item)
        spider.fail(item, seconds=0)
        spider.claim(item, owner=owner, nonce="2")
    before = client.time()[0]
    assert spider.leave(*spider.stored().values()) == 0
    found = {field: (one.owner, one.arguments) for field, one in spider.stored().items()}
    left = {A: ("-.domain=a", "domain=a"), B: ("-.", ""), C: (FAILED, None)}
    assert found == {item.hex(): one for item, one in left.items()}
    for item in owners:
        claim = spider.stored()[item.hex()]
        assert (claim.nonce, claim.attempts, claim.has_failed) == (LEFT, 1, False)
        assert before <= claim.due <= client.time()[0]
        assert spider.request(item) == text_of(item)
    assert spider.claim(*owners, owner=THEIRS) == [NEW] * 3, "a link gets it, whoever has it"


def test_a_claim_that_no_run_could_crawl_ends_when_it_is_freed(
    spider: Spider, client: Redis
) -> None:
    spider.claim(A, request="")
    client.hset(HASH, B.hex(), b"worker n 1 0 " + b"x" * 65_537)
    client.hset(HASH, C.hex(), b"worker n 1 0 " + b"x" * 65_536)
    assert spider.leave(*spider.stored().values()) == 2
    assert (spider.only().field, spider.only().nonce) == (C.hex(), LEFT)


def test_a_failed_target_of_a_redirect_is_told_from_a_failed_link(spider: Spider) -> None:
    """Until a link stores its request: whoever yielded a link yields it again."""
    spider.claim(A, B, request="")
    spider.fail(A, reason="redirect:HTTP-503")
    spider.fail(B, reason="HTTP-503")
    assert spider.claim(A, B, nonce="2", request="") == [Verdict.ASTRAY, Verdict.FAILED]
    assert spider.claim(A, nonce="3", request="{}") == [Verdict.FAILED]
    assert spider.claim(A, nonce="4", request="") == [Verdict.FAILED]


@pytest.mark.parametrize("reason", [LEFT, DROPPED, AGAIN])
def test_what_has_not_failed_waits_for_no_clock(spider: Spider, reason: str) -> None:
    """A clock that was ahead, and is corrected, hides nothing."""
    spider.claim(A)
    spider.fail(A, reason=reason, seconds=300, attempts=0)
    assert spider.claim(A, nonce="2") == [NEW]


def test_only_claims_of_the_owner_that_was_seen_are_freed(spider: Spider) -> None:
    spider.claim(A, B, owner="dead")
    spider.claim(C, request="")
    seen = [*spider.stored().values()]
    spider.bloom.run(spider.claims.take(0, seen, OURS, "n"))
    spider.settle(B)
    before = spider.stored()
    for _ in range(2):
        assert spider.leave(*seen) == 0
    assert spider.stored() == before
    spider.leave(*before.values())
    left = spider.stored()
    assert spider.leave(*before.values()) == 0, "a second time changes nothing"
    assert spider.stored() == left


# -- workers --


@differs
def test_workers_live_until_the_time_that_they_said(spider: Spider, client: Redis) -> None:
    def beat(worker: str, seconds: int) -> dict[str, int]:
        now, workers = spider.bloom.run(spider.claims.beat(worker, seconds))
        assert abs(now - client.time()[0]) <= 1
        return {name: until - now for name, (until, _) in workers.items()}

    assert beat("one", 60) == {"one": 60}
    workers = beat("two", 30)
    assert (workers["two"], 50 < workers["one"] <= 60) == (30, True)
    assert beat("one", 0).keys() == {"two"}
    client.zadd("{shop:bloom:0}:workers:shop", {"dead for days": 5, "x" * 900: 4e9})
    assert beat("two", 30) == {"two": 30}
    client.zadd("{shop:bloom:0}:workers:shop", {f"{n}": 4e9 for n in range(3_000)})
    assert len(beat("two", 30)) == 999, "the 1,000 that live longest, but for the long name"


@differs
def test_a_worker_says_whether_it_is_idle(spider: Spider) -> None:
    for is_idle in (True, False):
        now, workers = spider.bloom.run(spider.claims.beat("one", 60, is_idle=is_idle))
        assert workers == {"one": (now + 60, is_idle)}


# -- shared work --


def test_claims_are_given_in_shares_and_each_is_received_once(spider: Spider) -> None:
    run, claims, given = spider.bloom.run, spider.claims, [A, B, b"d"]
    spider.claim(*given)
    spider.claim(C, owner=THEIRS)
    assert run(claims.give([*map(key, (*given, C))], OURS, "group", 2)) == {*map(key, given)}
    assert {one.owner for one in spider.stored().values()} == {"group", THEIRS}
    assert run(claims.count_shares("group")) == 2
    for items in (given[:2], given[2:]):
        share = run(claims.receive("group"))[0]
        texts = {item.hex(): text_of(item) for item in items}
        assert run(claims.take(0, share, THEIRS, "n")) == texts
        assert run(claims.take(0, share, OURS, "n")) == {}, "somebody has received it"
    assert run(claims.receive("group")) == {}
    assert run(claims.receive("another group")) == {}


@pytest.mark.parametrize("share", [b"\xff 0:ZZ 99999999:aa 0:" + b"a" * 500, b"0:0 " * 100_000])
def test_a_share_that_is_damaged_is_empty(spider: Spider, client: Redis, share: bytes) -> None:
    client.rpush("{shop:bloom:0}:shares:shop:group", share)
    assert spider.bloom.run(spider.claims.receive("group")) == {}


def test_a_huge_request_is_not_received(spider: Spider, client: Redis) -> None:
    client.hset("{shop:bloom:0}:claims:shop", "aa", b"group n 1 0 " + b"x" * 100_000)
    client.rpush("{shop:bloom:0}:shares:shop:group", b"0:aa")
    share = spider.bloom.run(spider.claims.receive("group"))[0]
    assert spider.bloom.run(spider.claims.take(0, share, OURS, "n")) == {"aa": ""}


# -- damage --

FORGED = [
    "",
    "x",
    "a b",
    "a b c d e",
    "a b 1 2",
    "a b -1 0 {}",
    "a b 9999999999999 0 {}",
    "\xff\x00",
]
FORGED += ["o" * 900 + " n 1 0 {}", "a b 1 99999999999 {}"]


@differs
@pytest.mark.parametrize("value", FORGED)
def test_a_forged_claim_is_skipped_and_its_url_is_not_hidden(
    spider: Spider, client: Redis, value: str
) -> None:
    spider.claim(B)
    client.hset(HASH, A.hex(), value)
    assert spider.only().field == B.hex()
    assert (0, A.hex()) not in spider.bloom.run(spider.claims.find([(0, A.hex())]))
    spider.claim(A, nonce="2")
    spider.settle(A)
    spider.bloom.run(spider.claims.hold([key(A)], OURS))
    spider.bloom.run(spider.claims.again({(0, A.hex()): "{}"}))
    spider.confirm(A)
    spider.bloom.run(spider.claims.drop(0, [A.hex()]))
    assert spider.claim(A, nonce="3") in ([NEW], [SEEN])
    assert spider.stored()[B.hex()].owner == OURS


@differs
def test_a_forged_claim_without_a_field_name_ends_no_scan(spider: Spider, client: Redis) -> None:
    items = [b"%d" % number for number in range(600)]
    spider.claim(*items)
    for value in ("w1 n 1 0 {}", "- why 1 0 {}", "", "7"):
        client.hset(HASH, "", value)
        assert spider.stored().keys() == {item.hex() for item in items}


# -- what others write --

words = st.sampled_from(["w1", "q1", "-", "\u00e9", ""]) | st.text(max_size=5)
numbers = st.integers(-1, 10**14).map(str)
texts = st.tuples(words, words, numbers, numbers, st.text(max_size=9)).map(" ".join)


@differs
@given(st.binary() | texts.map(lambda text: text.encode("utf-8", "replace")))
@example(b"w1 1 " + b"9" * 5_000 + b" 0 {}")
@example(b"w1 1 1 0 \xff")
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_claim_that_can_be_taken_over_or_none(
    client: Redis, spider: Spider, data: bytes
) -> None:
    """A scan and a look-up raise nothing, and show the same."""
    client.hset(HASH, "aa", data)
    scanned = spider.stored()
    found = spider.bloom.run(spider.claims.find([(0, "aa")]))
    assert len(found) == len(scanned)
    for one, _ in found.values():
        assert replace(one, length=0) == replace(scanned["aa"], length=0)
        assert spider.bloom.run(spider.claims.take(0, [one], OURS, "1")).keys() == {"aa"}


@differs
@given(st.binary() | st.from_regex(r"([0-9]{1,7}:[0-9a-z:]{1,5}( |$))*").map(str.encode))
@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_share_of_claims_or_none(
    client: Redis, spider: Spider, data: bytes
) -> None:
    client.rpush("{shop:bloom:0}:shares:shop:group", data)
    for block, claims in spider.bloom.run(spider.claims.receive("group")).items():
        assert all(f"{block}:{one.field}".encode() in data for one in claims)
