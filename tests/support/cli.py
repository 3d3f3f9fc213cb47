"""What calls of `scrapy bloom` are made of, and what they return."""

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import redis
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.protocol.claims import FAILED, Claims, NewClaim
from scrapy_bloom.bloom.protocol.notes import note_crawl
from scrapy_bloom.bloom.protocol.session import Key, Verdict
from support.servers import contents

KEY = "shop:bloom"
SECRET = "S3CRET"
URLS = [f"https://example.com/{number}" for number in range(20)]


class Shop(Spider):
    name = "shop"

    def __init__(self, needed: str) -> None:
        raise AssertionError("a spider may need arguments, and isn't made")

    def parse(self, response: Response) -> None: ...

    def parse_item(self, response: Response) -> None: ...


class Own(Spider):
    name = "own"
    custom_settings: ClassVar = {"BLOOM_KEY": "special"}  # type: ignore[misc]


@dataclass
class Done:
    """What a call of the command has done."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)

    def refused(self, *texts: str, code: int = 2) -> None:
        """It has printed nothing but an error, which has these texts."""
        assert (self.code, self.out) == (code, "")
        assert all(text in self.err for text in texts), self.err


#: Calls ``scrapy bloom`` in this process, with arguments and settings of a project.
Call = Callable[..., Done]


def fingerprints(urls: Sequence[str]) -> list[bytes]:
    return [RequestFingerprinter().fingerprint(Request(url)) for url in urls]


def everything(client: redis.Redis, pattern: str = "*") -> dict[bytes, tuple[object, int]]:
    return {
        key: (value, int(client.expiretime(key.decode())))
        for key, value in contents(client, pattern).items()
    }


@contextmanager
def unchanged(client: redis.Redis, pattern: str = "*") -> Iterator[None]:
    """Nothing that is stored is changed."""
    before = everything(client, pattern)
    yield
    assert everything(client, pattern) == before


def give(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Have the standard input give bytes."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def in_shop(bloom: BloomFilter) -> Claims:
    """Return the claims of the shop's spider, which has crawled with a filter."""
    bloom.run(note_crawl(bloom.session, "shop"))
    return Claims(bloom.session, "shop")


def claim(bloom: BloomFilter, urls: Sequence[str], owner: str = "w1") -> list[Key]:
    """Claim URLs for a worker; return their keys."""
    keys = [("default", item) for item in fingerprints(urls)]
    texts = [json.dumps({"url": url}) for url in urls]
    made = [NewClaim(key, "nonce", text) for key, text in zip(keys, texts, strict=True)]
    verdicts = bloom.run(in_shop(bloom).claim(made, owner))
    assert {*verdicts} <= {Verdict.NEW}
    return keys


def fail(
    bloom: BloomFilter,
    urls: Sequence[str],
    seconds: int = 600,
    reason: str = "HTTP-503",
    owner: str = FAILED,
) -> None:
    """Claim URLs, and have them fail, so that they are tried again after some seconds."""
    waiting = [NewClaim(key, reason, "") for key in claim(bloom, urls)]
    bloom.run(in_shop(bloom).wait(waiting, owner, seconds, attempts=1))


def claims(client: redis.Redis) -> dict[str, tuple[str, str, int, int, dict[str, Any]]]:
    """Return the claims that are stored, by the URLs of their requests."""
    found = {}
    for key in client.keys("*:claims:*"):
        for value in client.hvals(key):
            owner, nonce, time, attempts, request = value.decode().split(" ", 4)
            stored = json.loads(request)
            found[stored["url"]] = owner, nonce, int(time), int(attempts), stored
    return found
