"""Pages that are missing, as the ledger's scripts note them on real servers."""

import json
from functools import partial

import pytest
import redis
from support.clock import MovedServer
from support.ledgers import OURS, add, claim, crawl, forget, items, missing_in

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol, ledger_protocol

pytestmark = pytest.mark.each_server


def test_a_missing_page_is_counted_once_a_window_and_is_gone_after_two(
    moving: BloomFilter, moved: MovedServer
) -> None:
    (page,) = found = items(1)
    first = int(moved.now())
    for kept in (1, 0):  # the second time, it is kept already
        claim(moving, found)
        assert add(moving, found, "HTTP 404") == kept
        moved.move(10)
    moving.run(partial(claim_protocol.confirm, items=found, owners=[OURS]))
    (missing,) = missing_in(moving)
    assert (missing.field, missing.url) == (field_of(page), "https://example.com/0")
    assert (missing.times, missing.reason) == (1, "HTTP 404")
    assert first <= missing.first <= first + 2
    assert missing.first == missing.last
    forget(moving, moved)
    assert crawl(moving, found, missing="HTTP 410") == 0  # gone: it is kept no longer
    (gone,) = missing_in(moving)
    assert (gone.times, gone.reason) == (2, "HTTP 410")
    assert gone.first == missing.first < gone.last
    forget(moving, moved)
    assert crawl(moving, found) == 1  # it is there again, by a link
    assert missing_in(moving) == []
    forget(moving, moved)
    assert crawl(moving, found, missing="HTTP 404") == 1
    assert [page.times for page in missing_in(moving)] == [1]


def test_missing_pages_are_noted_up_to_a_bound(
    one: BloomFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_protocol, "MAX_MISSING", 100)
    found = items(120)
    claim(one, found)
    assert add(one, found, "HTTP 404") == 120  # kept nevertheless
    assert add(one, found, "HTTP 410") == 20  # those that are not noted
    assert [page.reason for page in missing_in(one)] == ["HTTP 404"] * 100
    noted = [page.field for page in missing_in(one)]
    there = [item for item in found if field_of(item) in noted][:7]
    add(one, there)
    assert len(missing_in(one)) == 93
    add(one, found, "HTTP 404")  # there is room again
    assert len(missing_in(one)) == 100


@pytest.mark.parametrize(
    ("request_", "url"),
    [
        *(("no JSON", ""), ("[]", ""), ("1", ""), ("{}", ""), ('{"url":7}', "")),
        *(('{"url":{"a":1}}', ""), ("[" * 2_000, "")),
        ('{"url":"http://x/\\u00e9 \\n\\u4e2d"}', "http://x/\u00e9 \n\u4e2d"),
        (json.dumps({"url": "x" + "\u4e2d" * 9_000}), "x" + "\u4e2d" * 666),
        (json.dumps({"url": "x" * 2_000}), "x" * 2_000),
    ],
    ids=range(10),
)
def test_urls_of_odd_requests_are_noted_as_far_as_they_are_urls(
    one: BloomFilter, request_: str, url: str
) -> None:
    assert crawl(one, items(1), request_, missing="") == 1
    one.clear()
    assert crawl(one, items(1), request_, missing="a reason of words, caf\u00e9") == 1
    (missing,) = missing_in(one)
    assert missing.url == url
    assert missing.reason == "a reason of words, caf\u00e9"


def test_damaged_notes_are_left_out_and_start_again(one: BloomFilter, client: redis.Redis) -> None:
    found = items(4)
    crawl(one, found, missing=" ")  # of no reason
    assert {page.reason for page in missing_in(one)} == {""}
    client.hset("{k:0}:missing", field_of(found[0]), "damaged")
    client.hset("{k:0}:missing", field_of(found[1]), b"1 2 \xff ! x")
    client.hset("{k:0}:missing", field_of(found[3]), f"1 2 {'9' * 20} ! x")
    assert [page.field for page in missing_in(one)] == [field_of(found[2])]
    claim(one, [*items(3, 50)])
    for item in items(3, 50):
        client.hset("{k:0}:missing", field_of(item), "1 x 1 ! y")
    assert add(one, items(3, 50), "HTTP 404") == 3
    assert [page.times for page in missing_in(one)] == [1] * 4
