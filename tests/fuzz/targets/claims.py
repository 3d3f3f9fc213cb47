"""What is stored of claims, workers and requests: read or refused; what is read is stored alike."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scrapy import Request
from scrapy.http.request import NO_CALLBACK
from support import stored_requests
from support.stored_requests import SPIDER, exact

from fuzz.mutate import json_text
from fuzz.target import Target, object_in, texts_in
from scrapy_bloom.bloom.protocol.claim_protocol import StoredClaim
from scrapy_bloom.bloom.protocol.ledger_protocol import decode_reason, encode_reason
from scrapy_bloom.crawl import workers
from scrapy_bloom.crawl.liveness import WorkerView
from scrapy_bloom.crawl.request_codec import NotKeepableError, dump, load
from scrapy_bloom.crawl.request_values import MAX_LENGTH
from scrapy_bloom.crawl.workers import Process, Worker

NOW = 1_700_000_000
NAME = "pages"
ME = Worker(workers.worker_id(NAME), NOW, 30.0, Process("here", 1, "", 1), "dir abc")
OWNERS = (
    *(ME.id, workers.failed_id(NAME), workers.queue_id(NAME, "redis q")),
    *(workers.worker_id(NAME), workers.worker_id("other")),
)


# -- claims and workers: {"claims": {field: head}, "workers": {member: until}} --


def run_claims(data: bytes) -> None:
    """Read claims and workers, and decide which claims are free."""
    given = object_in(data)
    heads, others = texts_in(given.get("claims")), workers.parse_all(texts_in(given.get("workers")))
    for worker in others.values():
        again = Worker.parse(worker.member, str(worker.until))
        assert again == worker
        assert worker.life > 0
        workers.may_be_dead(worker, NOW)
    for idle in (0, NOW - 60):
        soon = {worker.id: worker.until for worker in others.values()}
        view = WorkerView(ME, others, NOW, idle, {OWNERS[3]: 100.0}, soon=soon)
        assert view.may_lose_workers in (True, False)
        assert view.next_death in (0, *soon.values())
        assert {worker.id for worker in view.dead} <= others.keys()
        assert view.has_lost_workers in (True, False)
        for field, head in heads.items():
            claim = StoredClaim.parse(field, head)
            if claim is not None:
                assert view.is_free(claim) <= view.is_unkept_lost(claim)
                assert view.is_to_be_awaited(claim) in (True, False)
                assert len(claim.reason) <= len(claim.nonce)
                # It is stored again as it was read, or a shorter one.
                stored = decode_reason(encode_reason(claim.reason))
                assert " ".join(claim.reason.split()).startswith(stored)


def _claim_seeds() -> Iterator[bytes]:
    heads = {f"{n:040x}": f"{owner} 0011 {NOW - n} {n} {n * 100}" for n, owner in enumerate(OWNERS)}
    own = replace(ME, process=Process.own())
    stopped = replace(ME, id=OWNERS[3], until=0)
    shared = replace(ME, id=workers.worker_id(NAME), queue=OWNERS[2])
    entries = {w.member: str(w.until) for w in (ME, own, stopped, shared)}
    yield json.dumps({"claims": heads, "workers": entries}).encode()
    long: tuple[dict[str, str], ...] = ({"aa": "x" * 100_000}, {"w " + "0 " * 9_000: "0"})
    failed = {"bb": f"{OWNERS[3]} !HTTP+503 {NOW} 1 9", "cc": f"-{OWNERS[3]} !a%2B%C3%A9 {NOW} 1 9"}
    for claims, crew in ((heads, {}), (failed, {}), ({}, entries), long):
        yield json.dumps({"claims": claims, "workers": crew}).encode()
    for host in ("[" * 900 + "]" * 900, "[" * 90_000, '"' + "h" * 90_000 + '"', "1" * 5_000):
        member = f"{OWNERS[3]} {ME.describe()}".replace('"here"', host)
        yield json.dumps({"claims": heads, "workers": {member: str(NOW)}}).encode()


# -- requests --


def run_request(data: bytes) -> None:
    """Read a stored request, and store it again."""
    modules = set(sys.modules)
    try:
        request = load(data.decode("utf-8", "replace"), SPIDER)
    except ValueError:
        return
    finally:
        added = {name for name in sys.modules.keys() - modules if not _is_codec(name)}
        assert not added, f"reading it has imported {added}"
        assert not type(SPIDER).touched, "reading it has evaluated a property"
    assert request.url.startswith(("http://", "https://"))
    for method in (request.callback, request.errback):
        assert method in (None, NO_CALLBACK) or getattr(method, "__self__", None) is SPIDER
    try:
        text = dump(request, SPIDER)
    except NotKeepableError:
        return  # it is longer as JSON, or has values that are no text again
    again = load(text, SPIDER)
    assert type(again) is type(request)
    assert _held(again) == _held(request)


def _held(request: Request) -> dict[str, object]:
    """Return what a request has; what is empty is not stored, of whatever type it is."""
    return {name: exact(v) for name in request.attributes if (v := getattr(request, name))}


def _is_codec(name: str) -> bool:
    return name.partition(".")[0] in ("encodings", "stringprep", "_strptime", "zlib", "bz2")


def _request_seeds() -> Iterator[bytes]:
    values = stored_requests
    held: list[Any] = [
        *((1, "a"), {1, 2}, frozenset([b"x"]), {1: 2}, b"\xff", values.Colour.RED),
        *(values.Point(1, (2,)), values.Price(1), values.Fixed({"a": [None, 1.5]})),
        values.Boxed.Colour.RED,
    ]
    requests = [
        Request("https://example.com/page?q=1"),
        Request("https://example.com/a", callback=SPIDER.parse, errback=SPIDER.failed, priority=3),
        Request("https://example.com/a", headers={"Referer": "https://example.com/", "A": ["b"]}),
        Request("https://example.com/a", method="POST", body=b"\0\xff", cookies={"a": "b"}),
        *(Request("https://example.com/a", meta={"a": value, "b": [value]}) for value in held),
        Request("https://example.com/a", cb_kwargs={"page": 1}, flags=["x"], dont_filter=True),
        values.TokenRequest("https://example.com/a", token=("x",)),
    ]
    for request in requests:
        yield dump(request, SPIDER).encode()
    tags = {
        "datetime": "2027-01-31T10:00:00+01:00",
        "date": "2027-01-31",
        "time": "10:00",
        "timedelta": "1 2 3",
        "decimal": "1E+999999",
        "uuid": "0" * 32,
        "PurePosixPath": "/a",
        "PureWindowsPath": "c:/a",
        "PosixPath": "a",
    }
    for tag, text in tags.items():
        yield values.stored(meta={"a": {tag: text}}).encode()
    yield values.stored(body="x" * MAX_LENGTH).encode()
    yield b"[" * 60_000
    yield values.stored(meta={"a": {"timedelta": "9" * 4_000 + " 0 0"}}).encode()
    yield (b'{"url":"https://a/","meta":' + b'{"a":' * 31 + b"1" + b"}" * 32)


CLAIMS = Target(run_claims, _claim_seeds, json_text)
REQUESTS = Target(run_request, _request_seeds, json_text)
