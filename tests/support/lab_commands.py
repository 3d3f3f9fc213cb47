"""Calls of `scrapy bloom` beside crawls of a lab, each in a process of its own."""

from itertools import count
from typing import Any

from support.cli import Done
from support.nursery import options_of
from support.odd_site import IMPORTS, PLAIN, Lab

_NUMBERS = count()
#: A call that has ended.
Called = Done


def bloom(lab: Lab, *arguments: str, spider: str = PLAIN, **settings: Any) -> Called:
    """Call `scrapy bloom` in a project of one spider, and wait for its end."""
    directory = lab.directory / f"call-{next(_NUMBERS)}"
    directory.mkdir()
    (directory / "odd_spider.py").write_text(IMPORTS + spider)
    settings = {"SPIDER_MODULES": "odd_spider", "BLOOM_REDIS_URL": lab.redis_url} | settings
    return Called(*lab.nursery.run(["bloom", *arguments, *options_of(settings)], directory))
