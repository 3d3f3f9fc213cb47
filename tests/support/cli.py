"""What calls of `scrapy bloom` are made of, and what they return."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.model.hashing import field_of
from scrapy_bloom.bloom.protocol import claim_protocol, worker_protocol
from scrapy_bloom.bloom.protocol.claim_protocol import RetryPolicy
from scrapy_bloom.crawl.request_codec import dump
from scrapy_bloom.crawl.workers import Process, Worker, failed_id, worker_id
from support.polling import PATIENCE
from support.servers import contents

KEY = "shop:bloom"
SECRET = "S3CRET"
ELSEWHERE = Process("host-1", 4711, "another boot", 1)
URLS = [f"https://example.com/{number}" for number in range(20)]


class Shop(Spider):
    name = "shop"

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


def fingerprints(urls: list[str]) -> list[bytes]:
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


def fields_of(info: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the fields of the dataclass that it was made of."""
    extra = {
        *("fill_ratio", "bits_per_url", "state"),
        *("name", "exists", "address", "block", "urls_forgotten", "differs", "ledger"),
    }
    kept = {k: v for k, v in info.items() if not k.endswith("_utc") and k not in extra}
    if "generations" in kept:
        kept["generations"] = tuple(fields_of(generation) for generation in kept["generations"])
    return kept


def claim(
    bloom: BloomFilter, owner: str, items: Sequence[str], request: str | None = None
) -> list[bytes]:
    """Claim items for an owner; without a request, those that are URLs are requested."""
    encoded = [item.encode() for item in items]
    urls = [item if "://" in item else URLS[0] for item in items]
    requests = [dump(Request(url), None) if request is None else request for url in urls]
    verdicts = bloom.run(
        lambda session: claim_protocol.claim(session, encoded, requests, owner, "nonce")
    )
    assert "".join(verdicts) == "1" * len(items)
    return encoded


def fail(
    bloom: BloomFilter,
    items: Sequence[str],
    seconds: int = 600,
    request: str | None = None,
    *,
    reason: str = "HTTP 503",
    attempts: int = 5,
    spider: str = "shop",
) -> None:
    """Claim items, and have them fail, so that they are due after some seconds."""
    owner = worker_id(spider)
    encoded = claim(bloom, owner, items, request)
    reasons = {field_of(item): reason for item in encoded}
    policy = RetryPolicy(failed_id(spider), seconds, attempts, reasons)
    bloom.run(lambda session: claim_protocol.release(session, encoded, owner, policy))


def register(bloom: BloomFilter, life: int = 21) -> str:
    """Make a worker that is good for ``life`` seconds, or has stopped (0); return its id."""
    worker = Worker(worker_id("shop"), 0, 10.0, ELSEWHERE)
    bloom.run(partial(worker_protocol.heartbeat, member=worker.member, life=life))
    return worker.id


def in_shell(command: str, directory: Path, **env: str) -> Done:
    """Run a shell command where there is no project; ``BLOOM`` stands for the command."""
    scrapy = f"{sys.executable} -m scrapy bloom"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SCRAPY_")}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command.replace('BLOOM ', f'{scrapy} ')}"],
        cwd=directory,
        env={**environment, **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)
