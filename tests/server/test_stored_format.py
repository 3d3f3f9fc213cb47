"""The stored format: what is written has the recorded text, and another format is rejected.

Whoever changes it without raising ``FORMAT`` has the next version misread what this one has stored.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import JsonRequest
from scrapy.http.request import NO_CALLBACK
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter
from support.cli import KEY, URLS, Call, everything, in_shop, unchanged
from support.clock import MovedServer
from support.filters import fields
from support.stored_requests import SPIDER, URL

from scrapy_bloom import ArchiveError, BloomFilter, FilterMismatchError
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.model.spec import FORMAT
from scrapy_bloom.bloom.protocol.claims import Claims, NewClaim, StoredClaim
from scrapy_bloom.bloom.protocol.workers import Workers
from scrapy_bloom.crawl.identity import Identity
from scrapy_bloom.crawl.monitor import Monitor
from scrapy_bloom.crawl.owners import Worker, queue_of
from scrapy_bloom.crawl.request_codec import dump
from scrapy_bloom.settings import BloomSettings

RING = f"{{{KEY}:0}}:ring"
OPTIONS: dict[str, Any] = {
    "capacity": 8,
    "error_rate": 0.01,
    "blocks": 2,
    "seeds": (5, 7, 11),
    "window": "2 months",
    "windows": {"1-day": Schedule.of("1 day")},
}


def assert_recorded(found: object, recorded: object) -> None:
    assert found == recorded, (
        "The stored format has changed, so versions before and after can't use each other's "
        "filters. Undo that, or raise FORMAT in scrapy_bloom/bloom/model/spec.py, and record this"
    )


# -- what is written --


def fill(client: Redis, **options: Any) -> BloomFilter:
    """Return a filter that remembers some URLs, one after the other, so that it grows."""
    bloom = BloomFilter(client, KEY, **{**OPTIONS, **options})
    for url in URLS:
        bloom.add(url)
    bloom.run(bloom.session.add([("1-day", b"\0\xff")]))
    return bloom


def stored(client: Redis) -> dict[str, Any]:
    """Return all keys, each with its value as text and when it expires."""
    found = everything(client).items()
    return {key.decode(): (as_text(value), expires) for key, (value, expires) in found}


def as_text(value: Any) -> Any:
    """Return what is stored under a key, without what is drawn at random."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [as_text(one) if isinstance(one, tuple) else one.decode() for one in value]
    if isinstance(value, tuple):
        return value[0].decode(), value[1]
    texts = {name.decode(): text.decode() for name, text in value.items() if name[:2] != b"v:"}
    if "spec" in texts:
        texts["spec"] = spec_of(texts["spec"])
        assert texts.pop("id").isalnum()
        assert texts.pop("made").isalnum()
    return texts


def spec_of(text: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(text)
    assert spec.pop("id").isalnum()
    return spec


SPEC = {
    "blocks": 2,
    "seeds": [5, 7, 11],
    "ring": "write-newest",
    "counting": False,
    "capacity": 8,
    "error_rate": 0.01,
    "format": 6,
}
MONTH, HALF_DAY = "1798761600-1801440000", "1800014400-1800057600"
RINGS = [
    {
        f"default:{MONTH}.0": "166 8 1803945600 1",
        f"default:{MONTH}.1": "487 16 1803945600 1",
        f"n:default:{MONTH}.0": "8",
        f"n:default:{MONTH}.1": "7",
    },
    {f"1-day:{HALF_DAY}.0": "166 8 1800187200 1", f"n:1-day:{HALF_DAY}.0": "1"},
    {f"default:{MONTH}.0": "166 8 1803945600 1", f"n:default:{MONTH}.0": "5"},
]
BITMAPS = [
    "0000000913019000052006a0800021400800182000",
    (
        "0000800004003000000040800010000000000000200004000400000000000000"
        "000000405400c010000000001000000000040000000002000000010000"
    ),
    "200000000000000000000000000080000000004000",
    "002000000200000000080010201041080300100420",
]
CLAIMS = [
    {
        "03" * 20: 'g1.a=1 - 1800014400 0 {"url":"u"}',
        "04" * 20: "w2.a=1 n2 1800014400 0 ",
        "05" * 20: "- recrawl 1800014400 0 {}",
        "06" * 20: '-.a=1 left 1800014400 0 {"url":"u"}',
        "07" * 20: "w1.a=2 n4:-.a=1 1800014400 0 {}",
        "h602a7995a48d7da7c4b3c823dcc30d26deb9fc34": "q1.a=1 n3 1800014400 0 {}",
    },
    {
        "00" * 20: '-.a=1 HTTP-503 1800015000 1 {"url":"u"}',
        "01" * 20: '-.a=1 HTTP-500 1800015000 1 {"url":"u"}',
    },
]
KEYS = {
    f"{{{KEY}:0}}:ring": (
        {
            "spec": SPEC,
            **RINGS[1],
            **RINGS[2],
            "s:shop": "",
            "w:default": "2 months/1 month",
            "w:1-day": "1 day/12 hours",
        },
        1838505600,
    ),
    f"{{{KEY}:1}}:ring": ({"spec": SPEC, **RINGS[0]}, 1838505600),
    f"{{{KEY}:1}}:default:{MONTH}.0": (BITMAPS[0], 1803945600),
    f"{{{KEY}:1}}:default:{MONTH}.1": (BITMAPS[1], 1803945600),
    f"{{{KEY}:0}}:1-day:{HALF_DAY}.0": (BITMAPS[2], 1800187200),
    f"{{{KEY}:0}}:default:{MONTH}.0": (BITMAPS[3], 1803945600),
    f"{{{KEY}:0}}:claims:shop": (CLAIMS[0], 1840104000),
    f"{{{KEY}:1}}:claims:shop": (CLAIMS[1], 1840104000),
    f"{{{KEY}:0}}:shares:shop:g1.a=1": ([f"0:{'03' * 20}"], 1800100800),
    f"{{{KEY}:0}}:groups:shop": ([("g1.a=1", 0.0)], 1800100800),
    f"{{{KEY}:0}}:workers:shop": ([("w1.a=1 place 7 99 - g1.a=1 60", 1800014460.5)], 1834574400),
}


def test_keys_and_their_values(moved: MovedServer) -> None:
    """Of a filter with two windows and a spider, at noon on 15 January 2027."""
    with moved.client() as client:
        bloom = fill(client)
        claims = in_shop(bloom)
        keys = [("default", bytes([number]) * 20) for number in range(8)]
        made = [NewClaim(keys[number], "n1", '{"url":"u"}') for number in (0, 1, 2, 3, 6, 7)]
        bloom.run(claims.claim([*made, NewClaim(keys[4], "n2", "")], "w1.a=1", "w2.a=1"))
        failed = NewClaim(keys[0], "HTTP-503", ""), NewClaim(keys[1], "HTTP-500", "")
        bloom.run(claims.wait(failed, "-.a=1", 600, attempts=1))
        bloom.run(claims.release(keys[2:3], ["w1.a=1"]))
        left = [StoredClaim(field * 20, "w1.a=1", "n1", 0, 0, 1) for field in ("06", "07")]
        bloom.run(claims.leave(0, left))
        bloom.run(claims.claim([NewClaim(keys[7], "n4", "{}")], "w1.a=2"))
        bloom.run(claims.keep([NewClaim(("default", b"x" * 33), "n3", "{}")], "q1.a=1"))
        bloom.run(claims.recrawl({(0, "05" * 20): "{}"}))
        bloom.run(Workers(claims).give(keys[3:4], "w1.a=1", "g1.a=1", 1))
        worker = Worker("w1.a=1", "place", 7, 99, "", "g1.a=1", 60)
        bloom.run(Workers(claims).beat(worker.member, 60, is_idle=True))
        assert_recorded(stored(client), KEYS)


@pytest.mark.parametrize(
    ("option", "recorded"),
    [
        ({"ring": "write-all"}, "1040004028220c00988444898000005800"),
        ({"counting": True, "capacity": 2}, "010000000000000100100000110000001000000000"),
    ],
    ids=str,
)
def test_bitmaps_of_other_kinds(moved: MovedServer, option: dict[str, Any], recorded: str) -> None:
    with moved.client() as client:
        fill(client, **option)
        assert_recorded(stored(client)[f"{{{KEY}:1}}:default:{MONTH}.0"][0], recorded)


def test_files(moved: MovedServer, tmp_path: Path) -> None:
    """The bitmaps are in the order of the rings. The windows of a shard have no order."""
    with moved.client() as client:
        fill(client).save(tmp_path / "file")
    line, _, bitmaps = gzip.decompress((tmp_path / "file").read_bytes()).partition(b"\n")
    head = json.loads(line)
    assert_recorded({**head, "spec": spec_of(head["spec"]), "rings": 3}, {"spec": SPEC, "rings": 3})
    found = {(one["window"], one["block"]): one["fields"] for one in head["rings"]}
    places = ("default", 1), ("1-day", 0), ("default", 0)
    assert_recorded(found, dict(zip(places, RINGS, strict=True)))
    maps = dict(zip(places, ("".join(BITMAPS[:2]), *BITMAPS[2:]), strict=True))
    assert_recorded([block for _, block in found], [1, 0, 0])
    assert_recorded(bitmaps.hex(), "".join(maps[place] for place in found))


def test_requests() -> None:
    """Other values of ``meta``, and so on, are in ``unit/test_request_values.py``."""
    as_given: dict[str, Any] = {
        "method": "POST",
        "cookies": {"c": "d"},
        "meta": {"a": "b"},
        "encoding": "latin-1",
        "priority": -3,
        "dont_filter": True,
        "flags": ["f"],
        "cb_kwargs": {"k": 1},
    }
    headers, body = {"A": ["b", b"\xff"]}, b"\xff"
    request = Request(
        URL, SPIDER.parse, errback=SPIDER.failed, headers=headers, body=body, **as_given
    )
    recorded = {
        "url": URL,
        "callback": "parse",
        "errback": "failed",
        "headers": [["A", "b", "\xff"]],
        "body": {"bytes": "\xff"},
        **as_given,
    }
    assert_recorded(json.loads(dump(request, SPIDER)), recorded)
    request = JsonRequest(URL, callback=NO_CALLBACK)
    found = json.loads(dump(request, SPIDER))
    recorded = {"callback": False, "class": "scrapy.http.request.json_request:JsonRequest"}
    assert_recorded({name: found[name] for name in recorded}, recorded)


def test_names_of_requests_windows_and_queues() -> None:
    """By these, a crawl finds again what another one has stored."""
    rules = [["/a", "1 day"], ["/b", "2 weeks"]]
    own = BloomSettings.read(Settings({"BLOOM_RECRAWL_RULES": rules}), "shop").rules()
    crawler = Crawler(Spider)
    crawler.request_fingerprinter = RequestFingerprinter()
    identity = Identity(crawler, own, Monitor(None))
    keys = [
        identity.key(Request(f"https://example.com{path}", meta={"bloom_key": key}))
        for path, key in (("/a", "a \xe4"), ("/b", "x" * 300), ("/c", b"\xff"))
    ]
    hashed = "2cf0b5274788f5ff9a8330a13a72a048929fef6e76b9e3336b6112edf590027c"
    recorded = [
        ("1-day", b"bloom_key:a \xc3\xa4"),
        ("2-weeks", b"hashed:" + bytes.fromhex(hashed)),
        ("default", b"bloom_key:\xff"),
    ]
    assert_recorded(keys, recorded)
    shared = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "SCHEDULER_QUEUE_KEY": "q"}
    queues = [queue_of(Settings(one)) for one in ({"JOBDIR": "/job"}, shared)]
    assert_recorded(queues, ["qb6971d506b9189a6", "q55a61974a73430de"])


# -- another format --

#: An older one, a newer one, and values that no version has written.
OTHERS = [FORMAT - 1, FORMAT + 1, "x" * 1_000, None, [FORMAT]]

CLAIM = NewClaim(("default", b"a"), "n1", "{}")


def make_other(client: Redis, value: object = FORMAT + 1) -> None:
    """Make the filter one of another format."""
    spec = json.loads(fields(client)["spec"])
    client.hset(RING, "spec", json.dumps({**spec, "format": value, "seeds": "as that has them"}))


@pytest.mark.parametrize(
    "use",
    [
        lambda bloom: bloom.add("a"),
        lambda bloom: bloom.contains(["a"]),
        lambda bloom: bloom.info(),
        lambda bloom: bloom.clear(),
        lambda bloom: bloom.delete(),
        lambda bloom: bloom.copy("copy"),
        lambda bloom: bloom.save("never-written"),
        lambda bloom: bloom.run(Claims(bloom.session, "shop").keep([CLAIM], "w1")),
    ],
)
def test_nothing_uses_or_deletes_a_filter_of_another_format(
    client: Redis, use: Callable[[BloomFilter], object]
) -> None:
    fill(client)
    make_other(client)
    with pytest.raises(FilterMismatchError, match="Use that version"), unchanged(client):
        use(BloomFilter(client, KEY))


def test_a_filter_that_becomes_another_one_while_it_is_open(client: Redis) -> None:
    """The next version has deleted it, and made its own."""
    bloom = fill(client)
    client.flushall()
    fill(client, seeds=(1, 2, 3))
    make_other(client)
    with unchanged(client):
        for _ in range(2):
            with pytest.raises(FilterMismatchError, match="Use that version"):
                bloom.add("new")


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: str(value)[:9])
def test_a_file_of_another_format(client: Redis, tmp_path: Path, value: object) -> None:
    path = tmp_path / "file"
    fill(client).save(path)
    line, _, rest = gzip.decompress(path.read_bytes()).partition(b"\n")
    head = json.loads(line)
    head["spec"] = json.dumps({**json.loads(head["spec"]), "format": value})
    path.write_bytes(gzip.compress(json.dumps(head).encode() + b"\n" + rest))
    client.flushall()
    with pytest.raises(ArchiveError, match=r"because another version .*, not [0-9]+\)\. Use that"):
        BloomFilter(client, KEY).load(path)
    assert not client.keys()


@pytest.mark.parametrize(
    "arguments",
    [
        *(["info"], ["check", URLS[0]], ["pending"], ["clear", "--yes"], ["report", "file.html"]),
        *(["recrawl", URLS[0]], ["recrawl", "--failed"]),
    ],
    ids=" ".join,
)
def test_commands_name_the_setting(
    shop: Call, bloom: BloomFilter, client: Redis, arguments: list[str]
) -> None:
    make_other(client)
    with unchanged(client):
        shop(*arguments).refused("Use that version, or choose another BLOOM_KEY")


def test_doctor_blames_the_settings(shop: Call, bloom: BloomFilter, client: Redis) -> None:
    make_other(client)
    found = {row["check"]: row for row in shop("doctor", "--json").json["rows"]}
    assert "Use that version, or choose another BLOOM_KEY" in found["settings"]["finding"]
    assert found["server"]["state"] == "ok"
