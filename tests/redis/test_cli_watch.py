"""``scrapy bloom watch``, ``export`` and ``import``: files, pipes and terminals."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from support.cli import KEY, URLS, Call, everything, fingerprints, in_shell
from support.outages import killed
from support.paths import PROJECT
from support.polling import PATIENCE
from support.servers import Server, contents

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli.monitor import _rate


@contextmanager
def watching(url: str, *arguments: str, **streams: Any) -> Iterator["subprocess.Popen[str]"]:
    """Run ``scrapy bloom watch`` in a process of its own; end it by Ctrl-C."""
    command = ["-m", "scrapy", "bloom", "watch", "--every", "0.2", "--key", KEY, *arguments]
    settings = ["-s", f"BLOOM_REDIS_URL={url}", "-s", "BLOOM_TIMEOUT=1"]
    process = subprocess.Popen(
        [sys.executable, *command, *settings],
        cwd=PROJECT,
        text=True,
        # A background job of a script ignores it, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **streams},
    )
    with process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_it_looks_as_often_as_told_and_changes_nothing(shop: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, window="3 months")
    bloom.extend(fingerprints(URLS))
    before = everything(client)
    done = shop("watch", "--times", "2", "--every", "0.1")
    assert everything(client) == before
    assert (done.code, done.err) == (0, "")
    first, second = done.out.strip().split("\n\n")
    assert first.splitlines()[1].split()[:2] == ["URLs", "new"]
    urls, rate, *_, key = first.splitlines()[2].split()
    assert (urls, rate, key) == ("20", "-", KEY)
    assert second.splitlines()[2].split()[:2] == ["20", "+0"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--every", "never"), "--every is a time from 0.1 to 3600 seconds"),
        (("--every", "0"), "--every is a time from 0.1 to 3600 seconds"),
        (("--times", "0"), "--times"),
    ],
)
def test_bad_options(shop: Call, arguments: tuple[str, ...], says: str) -> None:
    done = shop("watch", *arguments)
    assert done.code == 2
    assert says in done.err


def test_a_server_that_goes_away_is_shown_and_found_again(any_binary: str) -> None:
    with Server(any_binary) as server, watching(server.url, "--json") as process:
        with server.client() as client:
            BloomFilter(client, KEY).extend(fingerprints(URLS))
        assert process.stdout is not None
        found = map(json.loads, process.stdout)
        next(look for look in found if look["filters"] and look["filters"][0]["urls"] == 20)
        with killed(server):
            assert "is not there" in next(look for look in found if look["error"])["error"]
        next(look for look in found if look["filters"])


def test_on_a_terminal_it_stays_in_one_place(server: Server, client: Redis) -> None:
    pytest.importorskip("rich")
    BloomFilter(client, KEY).extend(fingerprints(URLS))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with watching(server.url, stdout=theirs, stderr=theirs, env=environment):
        seen = b""
        while seen.count(KEY.encode()) < 2:
            seen += os.read(ours, 4096)
    os.close(theirs)
    os.close(ours)
    assert b"\x1b[" in seen.split(KEY.encode())[1], "the cursor moves back"


def test_rates_are_of_filters_that_were_there_before() -> None:
    before: dict[str, tuple[float, int]] = {}

    def rates(at: float, **urls: int | None) -> list[float | None]:
        filters: list[dict[str, Any]] = [{"key": key, "urls": n} for key, n in urls.items()]
        _rate(filters, at, before)
        return [one.get("urls_a_second") for one in filters]

    assert rates(10.0, a=100, b=None) == [None, None]
    assert rates(12.0, a=150, b=5, c=7) == [25.0, None, None]
    assert rates(14.0, a=None, b=5) == [None, 0.0]
    assert rates(14.0, a=150, b=9) == [None, None]


ITEMS = fingerprints(URLS)


@pytest.fixture
def bloom(client: Redis) -> BloomFilter:
    bloom = BloomFilter(client, KEY, capacity=1_000, blocks=3, window="3 days")
    bloom.extend(ITEMS)
    return bloom


@pytest.fixture
def file(shop: Call, bloom: BloomFilter, tmp_path: Path) -> Path:
    """A saved filter."""
    path = tmp_path / "filter"
    assert shop("export", str(path)).code == 0
    return path


def test_a_filter_goes_to_a_file_and_back(
    shop: Call, client: Redis, bloom: BloomFilter, tmp_path: Path
) -> None:
    before = everything(client)
    done = shop("export", "filter")
    assert done.code == 0
    assert everything(client) == before
    size = (tmp_path / "filter").stat().st_size
    assert done.out.split() == (
        f"shop:bloom on {address(bloom)}: 20 URLs saved to filter, {size:,} bytes".split()
    )
    client.flushall()
    done = shop("import", "filter")
    assert (done.code, done.err) == (0, "")
    assert done.out.split() == f"shop:bloom on {address(bloom)}: 20 URLs loaded from filter".split()
    assert everything(client).keys() == before.keys()
    assert BloomFilter(client, KEY).contains(ITEMS) == [True] * 20


def address(bloom: BloomFilter) -> str:
    """Return the server's address, as commands show it."""
    path = bloom._driver.client.connection_pool.connection_kwargs["path"]
    return f"unix://{path}"


def test_a_file_that_is_there_is_overwritten_only_by_force(
    shop: Call, client: Redis, bloom: BloomFilter, tmp_path: Path
) -> None:
    path = tmp_path / "filter"
    path.write_text("precious")
    done = shop("export", "filter")
    assert (done.code, done.out) == (2, "")
    assert "the file 'filter' is there already: --force overwrites it" in done.err
    assert path.read_text() == "precious"
    assert shop("export", "filter", "--force").code == 0
    assert shop("import", "filter", "--key", "else").code == 0
    assert BloomFilter(client, "else").contains(ITEMS) == [True] * 20


def test_a_key_in_use_is_refused(shop: Call, client: Redis, file: Path) -> None:
    before = everything(client)
    done = shop("import", str(file))
    assert (done.code, done.out) == (2, "")
    assert "the key 'shop:bloom' is in use, there is a filter under it" in done.err
    assert "scrapy bloom delete" in done.err
    assert everything(client) == before
    assert shop("delete", "--yes").code == 0
    assert shop("import", str(file)).code == 0


def test_more_memory_than_allowed_is_refused(shop: Call, client: Redis, file: Path) -> None:
    client.flushall()
    done = shop("import", str(file), "--max-memory", "1000")
    assert done.code == 2
    assert "1,000 are allowed" in done.err
    assert contents(client) == {}
    assert shop("import", str(file), "--max-memory", "much").code == 2
    assert shop("import", str(file), "--max-memory", "0").code == 0
    assert BloomFilter(client, KEY).info().max_memory is None, "it is no setting of the filter"


# -- pipes and terminals --


def scrapy(*arguments: str, server: Server) -> str:
    where = f"--key {KEY} -s BLOOM_REDIS_URL={server.url}"
    return f"{sys.executable} -m scrapy bloom {' '.join(arguments)} {where}"


def test_from_server_to_server_through_a_pipe(
    client: Redis, server: Server, bloom: BloomFilter, any_binary: str, tmp_path: Path
) -> None:
    with Server(any_binary) as target, target.client() as there:
        export = scrapy("export", "-", server=server)
        done = in_shell(f"{export} | {scrapy('import', '-', '--json', server=target)}", tmp_path)
        assert (done.code, done.err) == (0, "")
        assert json.loads(done.out)["count"] == 20
        assert BloomFilter(there, KEY).contains(ITEMS) == [True] * 20


def test_on_a_terminal_a_bar_shows_how_far_it_is(
    server: Server, client: Redis, tmp_path: Path
) -> None:
    BloomFilter(client, KEY, capacity=5_000_000).open()
    for command in ("export", "import"):
        master, slave = pty.openpty()
        subprocess.run(
            scrapy(command, "filter", server=server).split(),
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=slave,
            timeout=PATIENCE,
            check=True,
            env={**os.environ, "TERM": "xterm"},
        )
        BloomFilter(client, KEY).delete()
        os.close(slave)
        shown = os.read(master, 100_000).decode()
        os.close(master)
        assert f"bytes of bitmaps {'saved' if command == 'export' else 'loaded'}" in shown
