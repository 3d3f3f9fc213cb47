"""What is on exact record: who is in the sample, what is counted, and when it goes."""

import functools
import threading
from dataclasses import dataclass, field

import pytest
import redis
from conftest import Server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_bloom import (
    BloomDupeFilter,
    BloomFilter,
    ConfigurationError,
    FilterMismatchError,
    StorageError,
)
from scrapy_bloom.core.audit import Audited, Z, sample
from scrapy_bloom.core.pending import take
from scrapy_bloom.core.scripts import Call, Reply
from scrapy_bloom.core.sizing import predicted_error_rate


class Shop(Spider):
    """Has the filter "shop:bloom"."""

    name = "shop"


ITEMS = [f"{number}".encode() for number in range(20_000)]


def make(client: redis.Redis, key: str = "shop", **options: object) -> BloomFilter:
    return BloomFilter(client, key, **{"audit_rate": 1.0, "blocks": 2, "growth": 0, **options})


def judged(bloom: BloomFilter) -> tuple[int, int]:
    """Return how many items were judged, and how many of them wrong; no record is lost."""
    audited = bloom.info().audited
    assert audited.lost == 0
    return audited.count, audited.wrong


def records(client: redis.Redis) -> list[str]:
    return sorted(key.decode() for key in client.scan_iter("*.audit", count=1_000))


# -- the sample --


@given(rate=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]), seed=st.integers(0, 2**32 - 1))
def test_the_sample_is_the_share_that_was_asked_for_and_always_the_same(
    rate: float, seed: int
) -> None:
    chosen = sample(ITEMS[:5_000], range(5_000), rate, seed)
    count = len(chosen.split(";")) if chosen else 0
    assert abs(count - 5_000 * rate) <= 6 * (5_000 * rate * (1 - rate)) ** 0.5
    places = [int(part.split()[0]) for part in chosen.split(";")] if chosen else []
    assert sample(ITEMS[:5_000], [place - 1 for place in places], rate, seed).count(" ") == count


def test_places_are_those_in_the_call() -> None:
    first, second = sample(ITEMS, [7, 3], 1.0, 1).split(";")
    assert (first.split()[0], second.split()[0]) == ("1", "2")
    assert first.split()[1] == sample(ITEMS, [7], 1.0, 1).split()[1]


# -- the numbers --


@given(count=st.integers(1, 10**6), share=st.floats(0, 1))
def test_the_interval_is_wilsons(count: int, share: float) -> None:
    """Its ends are the rates that what was measured is 1.96 standard deviations away from."""
    audited = Audited(count, round(count * share))
    for end in audited.bounds:
        assert audited.rate is not None
        deviation = (end * (1 - end) / count) ** 0.5
        # At 0 and 1 one end is what was measured itself.
        assert abs(audited.rate - end) == pytest.approx(Z * deviation, rel=1e-6, abs=1e-6)


def test_nothing_is_known_of_nothing() -> None:
    assert Audited(0, 0).bounds == (0.0, 1.0)
    assert Audited(0, 0).rate is None


@given(count=st.integers(1, 10**9), share=st.floats(0, 1))
def test_the_rate_is_within_its_bounds(count: int, share: float) -> None:
    audited = Audited(count, round(count * share))
    low, high = audited.bounds
    assert audited.rate is not None
    assert 0 <= low <= audited.rate + 1e-12
    assert audited.rate - 1e-12 <= high <= 1


# -- what is counted --


def test_without_it_nothing_is_on_record(client: redis.Redis) -> None:
    bloom = make(client, audit_rate=None)
    bloom.extend(ITEMS[:100])
    assert (bloom.info().audit_rate, bloom.info().audited) == (0, Audited(0, 0, 0, 0))
    assert records(client) == []


@pytest.mark.parametrize("counting", [False, True])
def test_each_item_of_the_sample_is_on_record_once(client: redis.Redis, counting: bool) -> None:
    bloom = make(client, capacity=1_000, counting=counting)
    for _ in range(3):
        bloom.claim([*ITEMS[:500], ITEMS[0]])
        bloom.add(ITEMS[0])
    bloom.contains(ITEMS[500:600])
    assert judged(bloom) == (500, 0)


def test_the_measured_rate_is_the_predicted_one(client: redis.Redis) -> None:
    """Of a filter that is wrong often: all items that were new to it, exactly counted."""
    bloom = make(client, capacity=5_000, error_rate=0.05, blocks=1)
    wrong = sum(not new for new in bloom.claim(ITEMS[:5_000]))
    info = bloom.info()
    assert info.audited == Audited(5_000, wrong, records=1, lost=0)
    header, (layer,) = bloom.header, bloom.view.held[0].ring.layers
    assert header is not None
    rates = [
        predicted_error_rate(n, layer.num_bits, len(header.seeds)) for n in range(0, 5_000, 10)
    ]
    assert wrong > 0
    low, high = info.audited.bounds
    assert low * 0.8 <= sum(rates) / len(rates) <= high * 1.2
    # Asked again, they are no news.
    bloom.claim(ITEMS[:5_000])
    assert judged(bloom) == (5_000, wrong)


def test_a_part_of_the_items_is_enough(client: redis.Redis) -> None:
    bloom = make(client, capacity=20_000, error_rate=0.05, audit_rate=0.25)
    wrong = sum(not new for new in bloom.claim(ITEMS))
    audited = bloom.info().audited
    assert abs(audited.count - 5_000) < 400
    low, high = audited.bounds
    assert low * 0.9 <= wrong / len(ITEMS) <= high * 1.1
    assert sum(map(client.hlen, records(client))) == audited.count


def test_items_that_find_no_room_are_not_on_record(client: redis.Redis) -> None:
    bloom = make(client, capacity=100, blocks=1)
    bloom.claim(ITEMS[:1_000])
    assert bloom.unrecorded > 500
    info = bloom.info()
    assert info.audited.count == info.count + info.audited.wrong


def test_claims_that_are_confirmed_later_are_on_record_once(client: redis.Redis) -> None:
    bloom = make(client, capacity=1_000)
    items = ITEMS[:100]
    verdicts = bloom.run(lambda view: take(view, items, [""] * 100, "me", "1"))
    assert verdicts == "1" * 100
    bloom.claim(items)
    again = bloom.run(lambda view: take(view, items, [""] * 100, "me", "2"))
    assert again == "0" * 100
    assert judged(bloom) == (100, 0)


def test_what_many_claim_at_once_is_never_called_wrong(client: redis.Redis, server: Server) -> None:
    """Nothing is between a claim and its record, for another client to step in."""
    make(client, capacity=100_000, error_rate=1e-12).open()

    def work() -> None:
        with redis.Redis.from_url(server.url) as own:
            bloom = BloomFilter(own, "shop")
            for start in range(0, 2_000, 50):
                bloom.claim(ITEMS[start : start + 50])

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert judged(BloomFilter(client, "shop")) == (2_000, 0)


# -- generations --


@pytest.mark.parametrize("ring", ["write-newest", "write-all"])
def test_records_go_with_their_generation(client: redis.Redis, ring: str) -> None:
    bloom = make(client, capacity=1_000, window="3 runs", period="1 run", run="0", ring=ring)
    for run in range(6):
        worker = make(client, window="3 runs", run=f"{run}")
        assert all(worker.claim(ITEMS[100 * run : 100 * run + 100]))
        live = min(run + 1, 3)
        assert judged(worker) == (100 * live, 0)
        assert len(records(client)) == 2 * live
        assert set(worker.keys()) == {key.decode() for key in client.keys()}
    # Forgotten, an item is new again, and rightly so.
    assert all(make(client, window="3 runs", run="5").claim(ITEMS[:100]))
    assert judged(make(client)) == (400, 0)
    bloom.delete()
    assert client.dbsize() == 0


def test_what_is_recorded_again_outlives_the_older_record(client: redis.Redis) -> None:
    """Else it would count as wrong when that has gone, and the bits are there."""
    bloom = make(client, capacity=1_000, window="3 days", period="1 day", counting=True)
    for _ in range(6):
        bloom.extend(ITEMS[:200])
        bloom.rotate()
    bloom.extend(ITEMS[:200])
    assert bloom.info().audited.wrong == 0
    assert all(bloom.contains(ITEMS[:200]))


def test_a_claim_that_is_confirmed_in_a_later_period_is_known(client: redis.Redis) -> None:
    bloom = make(client, capacity=1_000, window="3 days", period="1 day")
    items = ITEMS[:200]

    def claimed(nonce: str) -> str:
        return bloom.run(lambda view: take(view, items, [""] * 200, "me", nonce))

    assert claimed("1") == "1" * 200
    bloom.rotate()
    bloom.claim(items)
    bloom.rotate()
    bloom.rotate()
    assert claimed("2") == "0" * 200
    assert bloom.info().audited.wrong == 0


def test_what_is_recorded_again_after_a_loss_is_known(client: redis.Redis) -> None:
    bloom = make(client, capacity=1_000, window="3 days", period="1 day", blocks=1)
    bloom.claim(ITEMS[:200])
    bloom.rotate()
    client.delete("{shop:0}:0.0")
    assert bloom.claim(ITEMS[:200]) == [True] * 200
    bloom.rotate()
    bloom.rotate()
    assert not any(bloom.claim(ITEMS[:200]))
    assert bloom.info().audited.wrong == 0


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counting=st.booleans(),
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["claim", "add", "take"]), st.integers(0, 60)),
            st.tuples(st.just("rotate"), st.just(0)),
            st.tuples(st.just("lose"), st.integers(0, 3)),
        ),
        max_size=25,
    ),
)
def test_a_filter_that_is_never_wrong_is_never_called_wrong(
    client: redis.Redis, counting: bool, steps: list[tuple[str, int]]
) -> None:
    bloom = make(
        client, error_rate=1e-12, window="3 days", period="1 day", counting=counting, blocks=1
    )
    bloom.delete()
    for number, (kind, start) in enumerate(steps):
        items = ITEMS[start : start + 20]
        if kind == "claim":
            bloom.claim(items)
        elif kind == "add":
            bloom.extend(items)
        elif kind == "take":
            operation = functools.partial(
                take, items=items, requests=[""] * 20, owner="me", nonce=f"{number}"
            )
            bloom.run(operation)
        elif kind == "lose":
            client.delete(f"{{shop:0}}:{start}.audit")
        else:
            bloom.rotate()
    info = bloom.info()
    assert info.audited.wrong == 0
    assert info.audited.count <= 80 * 3


def test_a_record_of_a_lost_ring_goes(client: redis.Redis) -> None:
    bloom = make(client, blocks=1)
    bloom.claim(ITEMS[:100])
    client.delete("{shop:0}:ring")
    assert all(bloom.claim(ITEMS[:100]))
    assert judged(bloom) == (100, 0)


def test_a_record_of_another_type_changes_nothing(client: redis.Redis) -> None:
    bloom = make(client, blocks=1)
    bloom.open()
    client.set("{shop:0}:0.audit", "text")
    with pytest.raises(StorageError, match="0.audit"):
        bloom.add("a")
    client.delete("{shop:0}:0.audit")
    assert bloom.add("a")


def test_a_record_lives_as_long_as_its_generation(client: redis.Redis) -> None:
    bloom = make(client, window="5 months")
    bloom.claim(ITEMS[:100])
    for record in records(client):
        assert client.expiretime(record) == client.expiretime(record.replace(".audit", ".0"))
    longer = make(client, window="7 months")
    longer.open()
    for record in records(client):
        assert client.expiretime(record) == client.expiretime(record.replace(".audit", ".0"))
    make(client, window="never").open()
    assert all(client.ttl(record) == -1 for record in records(client))


def test_clearing_clears_the_record(client: redis.Redis) -> None:
    bloom = make(client)
    bloom.claim(ITEMS[:100])
    bloom.clear()
    assert judged(bloom) == (0, 0)
    assert records(client) == []
    assert all(bloom.claim(ITEMS[:100]))
    assert judged(bloom) == (100, 0)


# -- records that are lost --


def test_a_record_that_was_lost_judges_nothing(client: redis.Redis) -> None:
    """Else all that is rightly seen would count as wrong."""
    bloom = make(client, blocks=1)
    bloom.claim(ITEMS[:100])
    (record,) = records(client)
    client.delete(record)
    assert not any(bloom.claim(ITEMS[:100]))
    assert bloom.info().audited == Audited(100, 0, records=1, lost=1)
    assert all(bloom.claim(ITEMS[100:200]))
    assert bloom.info().audited == Audited(100, 0, records=1, lost=1)
    bloom.clear()
    assert all(bloom.claim(ITEMS[:50]))
    assert judged(bloom) == (50, 0)


def test_which_records_are_lost_is_told_by_block(client: redis.Redis) -> None:
    bloom = make(client, blocks=4, window="3 runs", period="1 run", run="0")
    bloom.claim(ITEMS[:200])
    bloom.rotate()
    bloom.claim(ITEMS[200:400])
    client.delete("{shop:1}:0.audit", "{shop:1}:1.audit", "{shop:3}:1.audit")
    blocks = [bloom.info(block).audited for block in range(4)]
    lost = [(audited.records, audited.lost) for audited in blocks]
    assert lost == [(2, 0), (2, 2), (2, 0), (2, 1)]
    assert sum(blocks, Audited()) == bloom.info().audited
    looked = BloomFilter(client, "shop").look()
    assert looked is not None
    assert [looked.audited[block] for block in range(4)] == blocks


@pytest.mark.parametrize("spoil", ["part", "type", "more", "count"])
def test_a_record_is_lost_if_it_is_not_what_was_counted(client: redis.Redis, spoil: str) -> None:
    bloom = make(client, blocks=1)
    bloom.claim(ITEMS[:100])
    assert judged(bloom) == (100, 0)
    (record,) = records(client)
    if spoil == "part":
        client.hdel(record, client.hkeys(record)[0])
    elif spoil == "type":
        client.delete(record)
        client.set(record, "text")
    elif spoil == "more":
        client.hset(record, "a", "1")
    else:
        client.hdel("{shop:0}:ring", "n:0.audit")
    assert (bloom.info().audited.records, bloom.info().audited.lost) == (1, 1)


def answers(client: redis.Redis, calls: list[Call]) -> list[Reply]:
    return [Reply.parse(call.send(client, by_text=True)) for call in calls]


def test_of_a_filter_that_rotates_meanwhile_nothing_looks_lost(client: redis.Redis) -> None:
    """When the records are asked for, their generations are forgotten, and others are there."""
    bloom = make(client, blocks=1, window="3 runs", period="1 run", run="0")
    bloom.claim(ITEMS[:100])
    steps = BloomFilter(client, "shop").view.look()
    rings = steps.send(answers(client, next(steps)))
    records_of = steps.send(answers(client, rings))
    for _ in range(4):
        bloom.rotate()
        bloom.claim(ITEMS[:100])
    with pytest.raises(StopIteration) as stop:
        steps.send(answers(client, records_of))
    assert stop.value.value.audited == {0: Audited(100, 0, records=3, lost=0)}


@dataclass
class Exact:
    """A generation of a filter that is never wrong, with its record."""

    items: set[bytes] = field(default_factory=set)
    judged: int = 0
    lost: bool = False


def follow(live: list[Exact], kind: str, number: int) -> None:
    """Do with the model, newest generation first, as is done with the filter."""
    if kind == "rotate":
        live[:] = [Exact(), *live[:2]]
    elif kind == "lose" and number < len(live):
        live[number].lost |= bool(live[number].items)
    elif kind == "claim":
        known = set().union(*(generation.items for generation in live))
        new = set(ITEMS[number : number + 20]) - known
        live[0].judged += 0 if any(generation.lost for generation in live) else len(new)
        live[0].items |= new


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ring=st.sampled_from(["write-newest", "write-all"]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("claim"), st.integers(0, 60)),
            st.tuples(st.just("rotate"), st.just(0)),
            st.tuples(st.just("lose"), st.integers(0, 2)),
        ),
        max_size=40,
    ),
)
def test_a_filter_that_is_never_wrong_is_not_called_so_after_losses_either(
    client: redis.Redis, ring: str, steps: list[tuple[str, int]]
) -> None:
    """What came while nothing was judged is known when it comes again."""
    options = {"error_rate": 1e-12, "window": "3 runs", "period": "1 run", "run": "0"}
    bloom = make(client, ring=ring, blocks=1, **options)
    bloom.delete()
    bloom.open()
    live = [Exact()]
    for kind, number in steps:
        if kind == "claim":
            bloom.claim(ITEMS[number : number + 20])
        elif kind == "rotate":
            bloom.rotate()
        elif number < len(live):
            generation = bloom.view.held[0].ring.generations[number]
            client.delete(f"{{shop:0}}:{generation.number}.audit")
        follow(live, kind, number)
        audited = bloom.info().audited
        assert (audited.records, audited.lost) == (len(live), sum(g.lost for g in live))
        assert (audited.count, audited.wrong) == (sum(g.judged for g in live), 0)


def test_after_a_loss_the_next_generations_judge_again(client: redis.Redis) -> None:
    """And find what is wrong, as before."""
    options = {"window": "2 runs", "period": "1 run", "run": "0"}
    bloom = make(client, blocks=1, capacity=1_000, error_rate=0.2, **options)
    bloom.claim(ITEMS[:500])
    client.delete(*records(client))
    bloom.claim(ITEMS[500:1_000])
    bloom.rotate()
    bloom.claim(ITEMS[1_000:1_500])
    bloom.rotate()
    assert judged(bloom) == (0, 0)
    new = bloom.claim(ITEMS[2_000:2_500])
    assert judged(bloom) == (500, new.count(False))
    assert new.count(False) > 0


def test_what_a_claim_costs_does_not_depend_on_it(client: redis.Redis) -> None:
    """Records are compared in ``info``, in the round trip that there is anyway."""
    bloom = make(client)
    bloom.claim(ITEMS[:100])
    calls = []
    for operation in (lambda: bloom.claim(ITEMS[:100]), bloom.info):
        before = bloom.round_trips
        operation()
        calls.append(bloom.round_trips - before)
    assert calls == [1, 1]


def test_a_crawl_says_once_that_records_are_lost(
    client: redis.Redis, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    make(client, "shop:bloom", window="5 months").claim(ITEMS[:100])
    client.delete("{shop:bloom:1}:0.audit")
    options = {"BLOOM_REDIS_URL": server.url, "BLOOM_BLOCKS": 2}
    crawler = get_crawler(Shop, options)
    crawler.spider = crawler._create_spider()
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    dupefilter.close("finished")
    assert crawler.stats is not None
    stats = crawler.stats.get_stats()
    assert (stats["bloom/audited"], stats["bloom/audit_records_lost"]) == (100, 1)
    assert caplog.text.count("'shop:bloom': 1 of 2 exact records of the audit were lost") == 1


# -- settings --


def test_it_is_decided_when_a_filter_is_created(client: redis.Redis) -> None:
    make(client, audit_rate=None).open()
    with pytest.raises(FilterMismatchError, match="BLOOM_AUDIT is 0.5"):
        make(client, audit_rate=0.5).open()
    make(client, audit_rate=0).open()
    make(client, "other", audit_rate=0.5).open()
    assert BloomFilter(client, "other").info().audit_rate == 0.5


@pytest.mark.parametrize("rate", [-0.1, 1.5, "much", float("nan"), [], True])
def test_a_rate_is_a_share(client: redis.Redis, rate: object) -> None:
    with pytest.raises(ConfigurationError, match="from 0 .none. to 1"):
        make(client, audit_rate=rate)


def test_a_stored_rate_is_not_trusted(client: redis.Redis) -> None:
    make(client).open()
    client.hset("{shop:0}:header", "audit_rate", "1e99")
    with pytest.raises(StorageError, match="damaged"):
        make(client).open()
