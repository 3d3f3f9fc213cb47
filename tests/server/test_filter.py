"""BloomFilter on real servers: the set it is, its names, what is stored, and its windows."""

import copy
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import pytest
from redis import Redis
from support.filters import KEY, URLS, add_to, at_round, rings, small, with_windows
from support.polling import until
from support.servers import Server, contents

from scrapy_bloom import BloomFilter, ConfigurationError, FilterMismatchError
from scrapy_bloom.bloom.protocol import whole
from scrapy_bloom.bloom.protocol.notes import note_crawl
from scrapy_bloom.bloom.protocol.session import Verdict

pytestmark = pytest.mark.each_server


def test_all_keys_are_named(client: Redis) -> None:
    bloom = small(client, blocks=2, capacity=100)
    bloom.add_many(URLS)
    assert bloom.keys() == sorted(key.decode() for key in client.keys())


def test_contains_takes_one_or_many_and_records_nothing(client: Redis) -> None:
    bloom = small(client)
    with pytest.raises(AssertionError, match="Call open"):
        assert bloom.hashes
    assert "a" not in bloom
    assert bloom.contains(["a", "b"]) == [False, False]
    assert len(bloom) == 0
    bloom.add("é")
    assert bloom.contains("é") is bloom.contains("é".encode()) is True
    assert bloom.contains(iter("éb")) == [True, False]
    assert (bloom.put("c"), bloom.extend(["c", "d", "e"])) == (True, 2)
    assert bloom.hashes == len(bloom.open().seeds)
    assert bloom.contains([]) == []
    assert "\ud800" not in bloom
    assert [bloom.add(""), bloom.add(b"")] == [True, False]


def test_nothing_is_added_of_what_has_another_type(client: Redis) -> None:
    """The characters of an item aren't items. Other types: unit/test_hashing.py."""
    bloom, wrong = small(client), cast("str", 1)
    for several in (bloom.add_many, bloom.extend, bloom.contains):
        with pytest.raises(TypeError, match="str or bytes"):
            several(["fine", wrong])
    for several in (bloom.add_many, bloom.extend):
        with pytest.raises(ConfigurationError, match="Several items are expected"):
            several("https://example.com/")
    assert len(bloom) == 0


def test_a_large_batch_keeps_its_order_and_what_streams_takes_no_memory(client: Redis) -> None:
    bloom = small(client, capacity=100_000, seeds=20)
    tracemalloc.start()
    assert bloom.extend(f"{n}" for n in range(0, 40_000, 4)) == 10_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25e6
    verdicts = bloom.add_many(map(str, range(12_000)))
    assert [n for n, new in enumerate(verdicts) if not new] == [*range(0, 12_000, 4)]


def test_a_filter_as_an_object(client: Redis) -> None:
    bloom = small(client)
    assert bloom
    assert repr(bloom) == "BloomFilter('shop:bloom') on the Redis server"
    for copy_it in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="can't be pickled. Open it in each process"):
            copy_it(bloom)
    assert bloom.transport.round_trips == 0
    with bloom as opened:
        assert opened is bloom
        assert client.exists("{shop:bloom:0}:ring")
    assert bloom.add("a"), "nothing was closed"


def test_a_filter_is_opened_by_an_address(client: Redis, server: Server) -> None:
    """It closes its own client, and filters of one address can be combined."""
    url = f"{server.url}?client_name=mine"
    with BloomFilter(url, KEY, capacity=100) as bloom:
        assert bloom.add("a")
        other = BloomFilter(url, "other", capacity=100, seeds=bloom.open().seeds)
        assert other.add("b")
        assert "a" in bloom.union(bloom.union(other, "both"), "all")
        assert f"127.0.0.1:{server.port}" in repr(bloom)
        assert is_connected(client, "mine")
    other.close()
    until(lambda: not is_connected(client, "mine"), "both filters have closed")
    assert "a" in small(client, capacity=100)


def is_connected(client: Redis, name: str) -> bool:
    return name in [one["name"] for one in client.client_list()]


# -- options of a filter in use --


def test_what_is_fixed_is_as_stored_and_sizes_count_for_new_bitmaps(client: Redis) -> None:
    small(client, blocks=4).add_many(URLS)
    other = BloomFilter(client, KEY, capacity=5)
    assert other.contains(URLS) == [True] * 1000
    assert other.open().blocks == 4
    assert other.open().capacity == 5
    assert rings(client, 4)[0].bitmaps[0].capacity > 2_500
    with pytest.raises(FilterMismatchError, match="created with `blocks` = 4"):
        BloomFilter(client, KEY, blocks=8).add("a")


@pytest.mark.parametrize("options", [{}, {"ring": "write-all", "window": "2 days"}], ids=str)
@pytest.mark.parametrize("singly", [False, True])
def test_a_filter_grows_and_says_so_once_per_bitmap(
    client: Redis, singly: bool, options: dict[str, Any]
) -> None:
    told: list[str] = []
    bloom = small(
        client, blocks=1, capacity=100, notify=lambda what, *_: told.append(what), **options
    )
    texts = list(map(str, range(1_000)))
    new = [bloom.add(text) for text in texts] if singly else bloom.add_many(texts)
    assert new == [True] * 1_000
    assert bloom.contains(texts) == [True] * 1_000
    (ring,) = rings(client, 1)
    assert [bitmap.number for bitmap in ring.bitmaps] == [0, 1, 2, 3]
    assert [ring.counts[bitmap.name] == bitmap.capacity for bitmap in ring.bitmaps[:3]] == [
        True
    ] * 3
    assert told.count("grown") == 3
    assert (len(bloom), bloom.info().windows["default"].bitmaps) == (1_000, 4)
    assert bloom.info().windows["default"].error_rate <= 1e-9


# -- windows --


def test_a_window_that_only_others_use_is_shown_and_cleared(client: Redis) -> None:
    crawl = with_windows(client, week="1 week")
    crawl.run(note_crawl(crawl.session, "spider"))
    add_to(crawl, "week", "a", "b")
    crawl.add("a")
    tool = BloomFilter(client, KEY)
    assert str(tool.info().windows["week"].schedule) == "1 week"
    assert tool.info().windows["week"].count == 2
    tool.clear("week")
    assert tool.info().windows["week"].count == 0
    assert add_to(crawl, "week", "a", "b") == [True, True]
    assert "a" in crawl
    before = contents(client)
    tool.clear("no such window")
    assert contents(client) == before


def test_entering_notes_windows_and_tells_which_have_changed(client: Redis) -> None:
    def enter(**windows: str) -> dict[str, str]:
        bloom = with_windows(client, **windows)
        changed, _ = bloom.run(note_crawl(bloom.session, "spider"))
        return {name: str(schedule) for name, schedule in changed.items()}

    assert enter(default="2 months", week="1 week") == {}
    assert enter(default="2 months", week="1 week") == {}
    assert enter(default="5 months", week="1 week") == {"default": "2 months"}
    assert enter(default="never", week="2 days") == {
        "default": "5 months",
        "week": "1 week",
    }


# -- clear --


def test_a_window_that_grows_while_it_is_cleared_is_cleared(client: Redis) -> None:
    bloom, other = (small(client, blocks=1, capacity=50) for _ in range(2))
    assert bloom.extend(URLS[:40]) == 40
    clearing = whole.clear(bloom.session, "default")
    bloom.run(at_round(clearing, 2, lambda: other.extend(URLS[40:90])))
    assert bloom.contains(URLS[:90]) == [False] * 90


@pytest.mark.parametrize("options", [{"window": "2 days"}, {"capacity": 50}, {"counting": True}])
def test_a_cleared_filter_is_empty_and_has_its_seeds(
    client: Redis, options: dict[str, Any]
) -> None:
    bloom, other = small(client, **options), small(client, **options)
    bloom.extend(URLS)
    assert other.contains(URLS[:3]) == [True] * 3
    before = bloom.open()
    bloom.clear()
    for one in (bloom, other, BloomFilter(client, KEY)):
        assert (one.info().count, one.contains(URLS[:3])) == (0, [False] * 3)
    assert bloom.open() == other.open() == before
    assert other.add_many(URLS) == [True] * 1000


USES: list[tuple[Callable[[BloomFilter], object], object]] = [
    (len, 500),
    (lambda bloom: sum(bloom.add_many(URLS)), 500),
    (lambda bloom: bloom.clear() or len(bloom), 0),
    (lambda bloom: bloom.info() and sum(bloom.add_many(URLS)), 500),
]


@pytest.mark.parametrize("blocks", [4, 32])
@pytest.mark.parametrize(("use", "expected"), USES)
def test_every_call_follows_a_filter_that_was_deleted_and_created_again(
    client: Redis, blocks: int, use: Callable[[BloomFilter], object], expected: object
) -> None:
    bloom = small(client)
    bloom.extend(URLS)
    client.flushall()
    other = BloomFilter(client, KEY, capacity=5_000, error_rate=1e-9, blocks=blocks)
    other.extend(URLS[:500])
    assert use(bloom) == expected
    assert bloom.session.known.seeds == other.session.known.seeds


def test_of_two_clients_that_create_it_at_the_same_moment_one_wins(client: Redis) -> None:
    one, two = small(client), small(client)
    # It has found nothing when the other one creates the filter.
    adding = at_round(one.session.add([("default", b"a")]), 1, lambda: two.add_many(["a", "b"]))
    assert one.run(adding) == [Verdict.SEEN]
    assert one.open() == two.open()
    assert one.add_many(["b", "c"]) == [False, True]
