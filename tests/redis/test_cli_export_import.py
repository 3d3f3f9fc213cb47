"""``scrapy bloom export`` and ``import``: files, pipes, terminals, and what is in the way."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from support.cli import KEY, URLS, Call, everything, fingerprints, in_shell
from support.polling import PATIENCE
from support.servers import Server, contents

from scrapy_bloom import BloomFilter

ITEMS = fingerprints(URLS)


@pytest.fixture
def bloom(client: redis.Redis) -> BloomFilter:
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
    shop: Call, client: redis.Redis, bloom: BloomFilter, tmp_path: Path
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
    shop: Call, client: redis.Redis, bloom: BloomFilter, tmp_path: Path
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


def test_a_key_in_use_is_refused(shop: Call, client: redis.Redis, file: Path) -> None:
    before = everything(client)
    done = shop("import", str(file))
    assert (done.code, done.out) == (2, "")
    assert "the key 'shop:bloom' is in use, there is a filter under it" in done.err
    assert "scrapy bloom delete" in done.err
    assert everything(client) == before
    assert shop("delete", "--yes").code == 0
    assert shop("import", str(file)).code == 0


def test_more_memory_than_allowed_is_refused(shop: Call, client: redis.Redis, file: Path) -> None:
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
    client: redis.Redis, server: Server, bloom: BloomFilter, any_binary: str, tmp_path: Path
) -> None:
    with Server(any_binary) as target, target.client() as there:
        export = scrapy("export", "-", server=server)
        done = in_shell(f"{export} | {scrapy('import', '-', '--json', server=target)}", tmp_path)
        assert (done.code, done.err) == (0, "")
        assert json.loads(done.out)["count"] == 20
        assert BloomFilter(there, KEY).contains(ITEMS) == [True] * 20
        done = in_shell(f"{export} | {scrapy('import', '-', server=target)}", tmp_path)
        assert done.code == 2
        assert "is in use" in done.err


def test_on_a_terminal_a_bar_shows_how_far_it_is(
    server: Server, client: redis.Redis, tmp_path: Path
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
