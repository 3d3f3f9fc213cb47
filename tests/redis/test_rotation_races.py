"""Many processes, kills and interleavings over rotation, growth, repair and changed settings."""

import multiprocessing
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis
from support.calls import send
from support.clock import MovedServer
from support.rotation import KEYS, assert_keys, assert_ttls, at, connect, layer_names

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.protocol.cached_ring import Verdict
from scrapy_bloom.bloom.protocol.membership import add, contains
from scrapy_bloom.bloom.protocol.ring_store import Operation
from scrapy_bloom.bloom.protocol.scripts import Call, Reply

NEW = Verdict.NEW

pytestmark = pytest.mark.each_server(others="slow")

ORDERS = ["write-newest", "write-all"]
DAY = 86_400


@pytest.fixture
def client(moved: MovedServer) -> Iterator[Redis]:
    with moved.client() as client:
        yield client
        assert_keys(client, going=True)


# -- many processes claim while the clock moves --

#: Processes are spawned: a forked one would share the parent's connections.
spawn = multiprocessing.get_context("spawn")
PROCESSES = 6
PAGES = [f"https://example.com/page/{i}" for i in range(5_000)]
#: A filter of few hashes: what is raced for is the ring, not the hashing.
FAST = {"seeds": None, "capacity": 400, "blocks": 4}


def claim_for_ever(number: int, url: str, shared: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Claim all pages over and over, in random order, in batches and one by one."""
    news, passes, stop = shared
    randoms = random.Random(number)
    order = list(range(len(PAGES)))
    with Redis.from_url(url) as client:
        bloom = connect(client, **options)
        while not stop.is_set():
            randoms.shuffle(order)
            start = 0
            while start < len(order):
                size = randoms.choice([1, 1, 20, 300])
                batch = order[start : start + size]
                if size == 1:
                    verdicts = [bloom.add(PAGES[batch[0]])]
                else:
                    verdicts = bloom.add_many([PAGES[page] for page in batch])
                for page, new in zip(batch, verdicts, strict=True):
                    news[number * len(PAGES) + page] += new
                start += size
            passes[number] += 1


@pytest.mark.parametrize(
    ("options", "new_in"),
    [
        (
            {"window": "1 day", "period": "1 day", "ring": "write-newest", "stagger": True},
            [1, 1, 1],
        ),
        ({"window": "2 days", "period": "1 day", "ring": "write-newest"}, [1, 0, 1]),
        ({"window": "2 days", "period": "1 day", "ring": "write-all"}, [1, 0, 1]),
    ],
    ids=str,
)
def test_claims_that_race_over_boundaries_are_new_once_in_each_window(
    moved: MovedServer, client: Redis, options: dict[str, Any], new_in: list[int]
) -> None:
    """Each process claims every page in each period; who was first, nobody else was."""
    moved.set_time(at(2027, 1, 15, 13))
    options = {**FAST, **options}
    connect(client, **{**options, "seeds": 12}).open()
    news = spawn.RawArray("i", PROCESSES * len(PAGES))
    passes, stop = spawn.RawArray("i", PROCESSES), spawn.Event()
    shared = (news, passes, stop)
    workers = [
        spawn.Process(target=claim_for_ever, args=(number, moved.url, shared, options))
        for number in range(PROCESSES)
    ]
    seen_new = [0] * len(PAGES)
    with ExitStack() as stack:
        for worker in workers:
            worker.start()
            stack.callback(worker.join)
        stack.callback(stop.set)
        for period, new in enumerate(new_in):
            if period:
                before = [sum(news[i :: len(PAGES)]) for i in range(len(PAGES))]
                assert before == seen_new
                winners = winners_of(news)
                moved.move(DAY)
            target = [count + 2 for count in passes]  # the one under way may have begun before
            while any(done < wanted for done, wanted in zip(passes, target, strict=True)):
                assert all(worker.is_alive() for worker in workers)
                stop.wait(0.005)
            seen_new = [count + new for count in seen_new]
            if period and new:
                gained = [now > then for now, then in zip(winners_of(news), winners, strict=True)]
                assert sum(gained) > 1, "they did not race"
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    assert [sum(news[i :: len(PAGES)]) for i in range(len(PAGES))] == seen_new
    assert len(connect(client, **options)) == len(PAGES)
    assert_ttls(client)


def winners_of(news: Any) -> list[int]:
    """Return how many pages were new to each process."""
    return [sum(news[n * len(PAGES) : (n + 1) * len(PAGES)]) for n in range(PROCESSES)]


# -- operations that are carried out call by call --

OLD = [f"old {i}" for i in range(40)]
NEXT = [f"next {i}" for i in range(60)]
BATCH = 12


class Stepper:
    """An operation of one client, carried out one call at a time."""

    def __init__(self, bloom: BloomFilter, steps: Operation[Any]) -> None:
        self.driver: Driver = bloom._driver
        self.steps = steps
        self.result: Any = None
        self.calls: list[Call] = []
        self.replies: list[Reply] = []
        self.is_done = False
        self._go_on(lambda: next(steps))

    def step(self) -> None:
        """Send the next call, unless all is done."""
        if self.is_done:
            return
        self.replies += send(self.driver, [self.calls[len(self.replies)]])
        if len(self.replies) == len(self.calls):
            replies = self.replies
            self._go_on(lambda: self.steps.send(replies))

    def _go_on(self, resume: Callable[[], list[Call]]) -> None:
        try:
            self.calls, self.replies = resume(), []
        except StopIteration as stop:
            self.is_done, self.result = True, stop.value


def claim_next(bloom: BloomFilter, told: list[Verdict]) -> Operation[list[Verdict]]:
    """Claim in batches, and note what was acknowledged."""
    for start in range(0, len(NEXT), BATCH):
        batch = [item.encode() for item in NEXT[start : start + BATCH]]
        told += yield from add(bloom.session, batch)
    return told


#: What a client does: claims, or something that leaves what is claimed alone.
ACTIONS: dict[str, Callable[[BloomFilter], Operation[Any]]] = {
    "claim": lambda bloom: claim_next(bloom, []),
    "open": lambda bloom: bloom.session.open(writable=True),
    "rotate": lambda bloom: bloom.session.rotate(),
    "clear": lambda bloom: bloom.session.clear(),
    "read": lambda bloom: bloom.session.read(),
    "contain": lambda bloom: contains(bloom.session, [item.encode() for item in OLD]),
}


def to_february(moved: MovedServer, client: Redis) -> None:
    moved.set_time(at(2027, 2, 1))


def lose_active_layer(moved: MovedServer, client: Redis) -> None:
    client.delete(KEYS.layer(0, layer_names(client)[0]))


def lose_ring(moved: MovedServer, client: Redis) -> None:
    client.delete(KEYS.ring(1))


def lose_header_and_ring(moved: MovedServer, client: Redis) -> None:
    client.delete(KEYS.header(), KEYS.ring(0))


def lose_all(moved: MovedServer, client: Redis) -> None:
    client.flushall()


FORGETFUL = {lose_active_layer, lose_ring, lose_all, lose_header_and_ring}


# -- kill -9 between any two script calls --


@dataclass(frozen=True)
class Case:
    """What is done when the killer strikes.

    Args:
        action: what the killed client does.
        before: happens when that client is ready, and before it begins.
        options: of the killed client and its survivor, other than those of the first one.
        opened: whether the client is open before.
    """

    action: str
    before: Callable[[MovedServer, Redis], object] = lambda moved, client: None
    options: dict[str, Any] | None = None
    opened: bool = True


CASES = {
    "rotation at open": Case("open", to_february, opened=False),
    "rotation in a claim": Case("claim", to_february),
    "growth in a claim": Case("claim"),
    "rotation in contains": Case("contain", to_february),
    "rotation by hand": Case("rotate"),
    "shorter window": Case("open", options={"window": "2 months"}, opened=False),
    "no window": Case("open", options={"window": "never"}, opened=False),
    "runs": Case("open", options={"window": "2 runs", "run": "1"}, opened=False),
    "clear": Case("clear"),
    "lost layer": Case("claim", lose_active_layer),
    "lost ring": Case("claim", lose_ring),
    "lost header and ring": Case("claim", lose_header_and_ring, opened=False),
    "lost everything": Case("claim", lose_all),
    "creation": Case("claim", lose_all, opened=False),
}


@pytest.mark.parametrize(
    ("name", "order"),
    [
        pytest.param(name, ORDERS[(number + place) % 2], marks=marks)
        for number, name in enumerate(CASES)
        for place, marks in ((1, ()), (0, pytest.mark.slow))
    ],
)
def test_a_client_killed_between_any_two_calls_leaves_nothing_half_done(
    moved: MovedServer, client: Redis, name: str, order: str
) -> None:
    """The next client carries on: what was acknowledged is seen, all else is new once."""
    case = CASES[name]
    basic = {"window": "5 months", "ring": order, "capacity": 40}
    options = {**basic, **(case.options or {})}
    for calls in range(200):
        client.flushall()
        moved.set_time(at(2027, 1, 15, 12))
        assert all(connect(client, **basic).add_many(OLD))
        victim = connect(client, **options)
        if case.opened:
            victim.open()
        case.before(moved, client)
        told: list[Verdict] = []
        is_claim = case.action == "claim"
        steps = claim_next(victim, told) if is_claim else ACTIONS[case.action](victim)
        stepper = Stepper(victim, steps)
        for _ in range(calls):
            stepper.step()
        survivor = connect(client, **options)
        if case.before not in FORGETFUL and case.action != "clear":
            assert survivor.contains(OLD) == [True] * len(OLD)
        verdicts = survivor.add_many(NEXT)
        assert told == [NEW] * len(told)
        assert verdicts[: len(told)] == [False] * len(told)
        assert all(verdicts[len(told) + BATCH :])  # a batch that was under way may be recorded
        assert not any(survivor.add_many(NEXT))
        other = connect(client, **options)
        assert other.contains(NEXT) == [True] * len(NEXT)
        other.add_many(OLD)
        assert not any(survivor.add_many(OLD))
        assert other.lost_blocks == 0
        assert len(survivor) == len(other) == len(OLD) + len(NEXT)
        assert_keys(client, going=True)
        assert_ttls(client)
        if stepper.is_done:
            break
    assert calls > 1, "it was never killed"
    assert stepper.is_done
