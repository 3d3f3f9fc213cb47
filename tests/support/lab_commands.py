"""Calls of `scrapy bloom` beside crawls of a lab, each in a process of its own."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from support.odd_site import PLAIN, Lab

_NUMBERS = count()


@dataclass(frozen=True)
class Called:
    """A call of `scrapy bloom` that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def start_bloom(
    lab: Lab, *arguments: str, spider: str = PLAIN, **settings: Any
) -> Callable[[], Called]:
    """Call `scrapy bloom` in a project of one spider; return what waits for its end."""
    directory = lab.directory / f"call-{next(_NUMBERS)}"
    directory.mkdir()
    (directory / "odd_spider.py").write_text(spider)
    settings = {"SPIDER_MODULES": "odd_spider", "BLOOM_REDIS_URL": lab.redis_url} | settings
    options = [text for name, value in settings.items() for text in ("-s", f"{name}={value}")]
    out, errors = directory / "out", directory / "errors"
    pid = lab.nursery.start(["bloom", *arguments, *options], out, directory, errors=errors)
    return lambda: Called(lab.nursery.wait(pid), out.read_text(), errors.read_text())


def bloom(lab: Lab, *arguments: str, spider: str = PLAIN, **settings: Any) -> Called:
    """Call `scrapy bloom`, and wait for its end."""
    return start_bloom(lab, *arguments, spider=spider, **settings)()
