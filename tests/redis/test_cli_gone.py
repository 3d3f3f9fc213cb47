"""``scrapy bloom gone``: which pages it lists, in which order, and what it shows of them."""

from functools import partial

import pytest
import redis
from support.cli import KEY, SECRET, Call, everything

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol import ledger_protocol


@pytest.fixture
def bloom(client: redis.Redis) -> BloomFilter:
    return opened(client, KEY)


def opened(client: redis.Redis, key: str) -> BloomFilter:
    bloom = BloomFilter(client, key, blocks=3, window="6 months")
    bloom.open()
    return bloom


def note(
    client: redis.Redis,
    url: str,
    *,
    times: int = 2,
    first: int = 1_800_000_000,
    why: str = "!HTTP+404",
    key: str = KEY,
) -> None:
    """Note a missing page, as prelude_ledger.lua does."""
    value = f"{first} {first + 100} {times} {why} {url}"
    client.hset(Keys(key).missing(len(url) % 3), f"{url}-field".encode().hex(), value)


def test_what_scripts_note_is_listed(shop: Call, bloom: BloomFilter) -> None:
    """That they note it: test_ledger_protocol.py."""
    assert bloom.run(partial(ledger_protocol.missing, block=0, count=9)) == []
    done = shop("gone")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(": 0 pages are gone; crawls note them with BLOOM_LEDGER = True\n"), (
        done.out
    )
    assert shop("gone", BLOOM_LEDGER=True).out.endswith(": 0 pages are gone\n")
    assert shop("gone", "--json").json["pages"] == []


def test_a_page_with_all_that_is_known(shop: Call, bloom: BloomFilter, client: redis.Redis) -> None:
    note(client, "https://example.com/a?x=1")
    note(client, "https://example.com/once", times=1)
    before = everything(client)
    document = shop("gone", "--json").json
    assert (document["gone"], document["missing"]) == (1, 2)
    (page,) = document["pages"]
    assert (page["url"], page["reason"]) == ("https://example.com/a?x=1", "HTTP 404")
    assert (page["name"], page["windows"]) == ("default", 2)
    assert (page["first"], page["last"]) == (1_800_000_000, 1_800_000_100)
    assert (page["first_utc"], page["last_utc"]) == ("2027-01-15T08:00:00Z", "2027-01-15T08:01:40Z")
    heading, line, total = shop("gone").out.splitlines()
    assert heading.split() == [*("windows", "since", "(UTC)", "last", "(UTC)", "reason", "URL")]
    assert line.split()[0] == "2"
    assert line.endswith("https://example.com/a?x=1")
    assert total.endswith("1 page is gone; 1 was missing in one window so far (--all lists them)")
    assert everything(client) == before


def test_forget_deletes_the_notes(shop: Call, bloom: BloomFilter, client: redis.Redis) -> None:
    note(client, "https://example.com/a")
    done = shop("gone", "--forget")
    assert "https://example.com/a" in done.out
    assert "1 page is gone; the notes are deleted" in done.out
    assert shop("gone", "--forget", "--json").json["forgotten"] is True
    assert not client.keys("*missing*")
    assert shop("gone", "--json").json["pages"] == []


def test_neither_credentials_nor_control_characters_are_printed(
    shop: Call, bloom: BloomFilter, client: redis.Redis
) -> None:
    note(client, f"https://user:{SECRET}@example.com/\x1b[31m", why="!%1B[31m+red")
    done = shop("gone")
    assert SECRET not in done.out
    assert "\x1b" not in done.out
    assert SECRET not in shop("gone", "--json").out


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"1 2 99999999999999999999 why url"])
def test_damaged_notes_are_left_out(
    shop: Call, bloom: BloomFilter, client: redis.Redis, value: bytes
) -> None:
    client.hset(Keys(KEY).missing(1), "ab", value)
    note(client, "https://example.com/a")
    done = shop("gone", "--json")
    assert (done.code, len(done.json["pages"])) == (0, 1)


def test_pages_that_are_missing_longest_come_first(
    shop: Call, bloom: BloomFilter, client: redis.Redis
) -> None:
    for place in (3, 1, 2, 0):
        note(client, f"https://example.com/{'x' * place}", first=1_800_000_000 + place)
    urls = [f"https://example.com/{'x' * place}" for place in range(4)]
    assert [page["url"] for page in shop("gone", "--json").json["pages"]] == urls
    limited = shop("gone", "--json", "--limit", "2").json
    assert [page["url"] for page in limited["pages"]] == urls[:2]
    assert limited["gone"] == 4
    assert "; 2 are not shown (--limit 0 shows all)" in shop("gone", "--limit", "2").out
