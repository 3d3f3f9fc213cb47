"""Fixtures: `scrapy bloom` in this process."""

import functools
import importlib.metadata
import logging
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Spider, cmdline
from scrapy.settings import Settings
from scrapy.utils import log
from support.claims import Spider as Claiming
from support.cli import KEY, Call, Done, Shop
from support.filters import small
from support.polling import PATIENCE
from support.servers import Server

from scrapy_bloom import BloomFilter

#: To read what all installed packages say takes a fifth of the time of a call.
entry_points = functools.cache(importlib.metadata.entry_points)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Scrapy sets the levels of its loggers, for all tests that follow."""
    levels = {name: logging.getLogger(name).level for name in ("scrapy", "twisted", "filelock")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Where an embedded server keeps its data; it is not there yet."""
    return tmp_path / "bloom"


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Call]:
    """In an empty directory, with a project of the given spiders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cmdline, "entry_points", entry_points)
    level = logging.root.level

    def call(*arguments: str, spiders: tuple[type[Spider], ...] = (), **settings: Any) -> Done:
        module = types.ModuleType("spiders_of_test")
        for spider in spiders:
            monkeypatch.setattr(spider, "__module__", module.__name__)
            setattr(module, spider.__name__, spider)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        project = Settings()
        project.setdict(
            {"SPIDER_MODULES": [module.__name__], "TELNETCONSOLE_ENABLED": False, **settings},
            priority="project",
        )
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cmdline.execute(["scrapy", "bloom", *arguments], project)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Done(int(exit_.value.code or 0), captured.out, captured.err)

    yield call
    if handler := log.get_scrapy_root_handler():
        logging.root.removeHandler(handler)
    log._scrapy_root_handler = None
    logging.root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def shop(call: Call, server: Server) -> Call:
    """In the project of one spider, on the server."""

    def in_shop(*arguments: str, **settings: Any) -> Done:
        # On a busy machine, the server may not answer within the usual time.
        project = {"BLOOM_REDIS_URL": server.unix_url, "BLOOM_TIMEOUT": PATIENCE, **settings}
        return call(*arguments, **{"spiders": (Shop,), **project})

    return in_shop


@pytest.fixture
def bloom(client: redis.Redis) -> BloomFilter:
    """The filter of that spider, open."""
    bloom = BloomFilter(client, KEY, blocks=3)
    bloom.open()
    return bloom


@pytest.fixture
def spider(client: redis.Redis) -> Claiming:
    """Claims on a filter of one block, in which no test meets a false positive."""
    return Claiming(small(client, blocks=1))
