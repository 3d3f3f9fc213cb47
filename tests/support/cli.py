"""What calls of `scrapy bloom` are made of, and what they return."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import redis
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.request import RequestFingerprinter

from support.servers import contents

KEY = "shop:bloom"
SECRET = "S3CRET"
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
        return json.loads(self.out)


#: Calls ``scrapy bloom`` in this process, with arguments and settings of a project.
Call = Callable[..., Done]


def fingerprints(urls: list[str]) -> list[bytes]:
    return [RequestFingerprinter().fingerprint(Request(url)) for url in urls]


def everything(client: redis.Redis) -> dict[bytes, tuple[object, int]]:
    return {
        key: (value, int(client.expiretime(key.decode())))
        for key, value in contents(client).items()
    }


def give(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Have the standard input give bytes."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def fields_of(info: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the fields of the dataclass that it was made of."""
    extra = {
        *("fill_ratio", "bits_per_url", "state"),
        *("name", "exists", "address", "block", "urls_forgotten", "differs"),
    }
    kept = {k: v for k, v in info.items() if not k.endswith("_utc") and k not in extra}
    if "generations" in kept:
        kept["generations"] = tuple(fields_of(generation) for generation in kept["generations"])
    return kept
