"""Sources of a migration: what they yield, and whether it is all of it."""

import hashlib
import os
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.servers import Server

from scrapy_bloom.bloom.errors import ConfigurationError, StorageError
from scrapy_bloom.migrate.batches import Source
from scrapy_bloom.migrate.lines import MAX_LINE_BYTES
from scrapy_bloom.migrate.sources import SeenSource, SetSource, UrlSource

if redis.__version__.startswith("5.0."):
    # It leaves the closing of a socket to a server that was killed to the garbage collector.
    pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

KEY = "shop:dupefilter"
W = "lasting"


def digest(number: int) -> bytes:
    return hashlib.sha1(str(number).encode()).digest()


def members(count: int) -> list[bytes]:
    return [digest(number).hex().encode() for number in range(count)]


def items(source: Source, size: int = 100, window: str = W) -> list[bytes]:
    batches = source.batches(size)
    return [item for batch in batches for item in batch.items.get(window, [])]


def identify(url: str) -> tuple[str, bytes]:
    if "://" not in url:
        raise ConfigurationError("no URL")
    return ("run" if "start" in url else "news" if "news" in url else W), url.encode()


# -- a SET --


@pytest.mark.parametrize("count", [1, 100, 5_000])
def test_all_members_of_a_set(client: redis.Redis, count: int) -> None:
    client.sadd(KEY, *members(count))
    source = SetSource(client, KEY, "label", W)
    assert source.total() == count
    assert source.name == "the SET 'shop:dupefilter' on label"
    assert set(items(source)) == {digest(number) for number in range(count)}
    read = sum(batch.read for batch in source.batches())
    assert read >= count
    assert source.problem(read) == ""
    assert f"{count:,} entries, of which {count - 1:,} are left" in source.problem(count - 1)
    client.delete(KEY)
    assert "of which 0 are left" in source.problem(read)


def test_other_members_are_counted_and_lose_no_fingerprint(client: redis.Redis) -> None:
    others = [b"", b"x", b"\xff\xfe", digest(0), members(1)[0][:-1], members(1)[0] + b"\n"]
    client.sadd(KEY, *members(3_000), *others)
    batches = list(SetSource(client, KEY, "label", W).batches(100))
    found = {item for batch in batches for item in batch.items.get(W, [])}
    assert found == {digest(number) for number in range(3_000)}
    assert sum(batch.skipped for batch in batches) >= len(others)
    assert any(batch.example in map(repr, others) for batch in batches)


@examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 40), st.integers(0, 4_000), st.integers(0, 1_900))
def test_what_is_in_a_set_all_the_time_is_read(
    client: redis.Redis, number: int, added: int, removed: int
) -> None:
    """Although its table is made larger or smaller meanwhile."""
    client.flushall()
    client.sadd(KEY, *members(2_000))
    found = []
    for batch in SetSource(client, KEY, "label", W).batches(40):
        found += batch.items.get(W, [])
        if number == 0:
            client.sadd(KEY, *members(2_000 + added)[1_999:])
            client.srem(KEY, b"", *members(removed))
        number -= 1
    assert {digest(number) for number in range(removed, 2_000)} <= set(found)


@pytest.mark.parametrize(("make", "what"), [("set", "a string"), ("", "nothing")])
def test_a_key_that_is_no_set(client: redis.Redis, make: str, what: str) -> None:
    if make:
        client.set(KEY, "x")
    remedy = f"holds {what}, .*--from-set KEY .*its server with --from-server"
    with pytest.raises(ConfigurationError, match=remedy):
        SetSource(client, KEY, "label", W)


def test_errors_of_its_server_name_its_options(any_binary: str) -> None:
    with Server(any_binary) as server, server.client() as client:
        client.sadd(KEY, *members(3))
        client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read", "-sscan")
        with server.client(username="reader", password="x") as reader:
            with pytest.raises(StorageError, match="grant it the SET's key and .* SSCAN") as caught:
                items(SetSource(reader, KEY, "label", W))
            assert "filter" not in str(caught.value)
        source = SetSource(client, KEY, "label", W)
        client.delete(KEY)
        assert source.problem(3)
        client.set(KEY, "x")
        with pytest.raises(StorageError, match="under the SET's key: .*--from-set KEY"):
            source.problem(3)
        client.config_set("requirepass", "y")
        for password in (None, "z"):
            with server.client(username=password and "default", password=password) as other:
                with pytest.raises(StorageError, match="in --from-server .or REDIS_URL") as caught:
                    SetSource(other, KEY, "label", W)
                assert "BLOOM" not in str(caught.value)
        server.kill()
        with pytest.raises(StorageError, match="with --from-server .or REDIS_URL") as caught:
            SetSource(client, KEY, "label", W)
        assert "BLOOM" not in str(caught.value)
        server.start()


def test_a_set_on_a_cluster(cluster: redis.RedisCluster) -> None:
    cluster.sadd(KEY, *members(3_000))
    source = SetSource(cluster, KEY, "label", W)
    assert set(items(source)) == {digest(number) for number in range(3_000)}


# -- requests.seen --


@pytest.mark.parametrize("form", ["text", "binary"])
def test_all_of_requests_seen(tmp_path: Path, form: str) -> None:
    entries = [digest(number) for number in range(3_000)]
    write = {"text": lambda one: one.hex().encode() + b"\n", "binary": lambda one: b"\0\x14" + one}
    (tmp_path / "requests.seen").write_bytes(b"".join(map(write[form], entries)) + b"\0\x14cut")
    for path in (tmp_path, tmp_path / "requests.seen"):
        source = SeenSource(path, W)
        assert abs(source.total() - 3_000) <= 1
        assert items(source) == entries
    batches = list(source.batches(100))
    assert len(batches) == 31
    assert sum(batch.read for batch in batches) == 3_001
    assert (batches[-1].skipped, batches[-1].example) == (1, "entry 3,001")


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "requests.seen").touch()
    assert items(SeenSource(tmp_path, W)) == []
    assert items(UrlSource(tmp_path / "requests.seen", identify)) == []


@pytest.mark.parametrize("kind", ["seen", "urls"])
@pytest.mark.parametrize("change", ["written", "touched", "deleted"])
def test_a_file_that_has_changed(tmp_path: Path, kind: str, change: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0a\n")
    source = SeenSource(path, W) if kind == "seen" else UrlSource(path, identify)
    assert source.problem(1) == ""
    if change == "written":
        path.write_bytes(b"0a\n0b\n")
    elif change == "touched":
        os.utime(path, (0, 0))
    else:
        path.unlink()
    assert "has changed while it was read" in source.problem(1)


def test_what_can_be_read_once_only_is_no_requests_seen(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="--from-seen '.*pipe' is no file"):
        SeenSource(tmp_path / "pipe", W)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--from-seen '.*requests.seen' cannot be read"):
        SeenSource(tmp_path, W)
    with pytest.raises(ConfigurationError, match="--from-urls '.*' cannot be read: No such file"):
        UrlSource(tmp_path / "x", identify)
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        UrlSource(tmp_path, identify)


# -- URLs --

lines = st.lists(
    st.sampled_from(
        [
            *(b"https://example.com/1", b"https://example.com/\xc3\xa4", b"https://news.example"),
            *(
                b"https://start.example",
                b"no url",
                b"",
                b"  ",
                b"\xff",
                b"x" * (MAX_LINE_BYTES + 5),
            ),
            *(b"  https://example.com/2\t\r", b"\xef\xbb\xbfhttps://example.com/3"),
            *(b"https:/a\rhttps:/b", b"https:/a\tx", b"\0"),
        ]
    ),
    max_size=30,
)


def expected(given_: list[bytes]) -> tuple[list[bytes], list[bytes], int, int]:
    """Return what lines hold: lasting, news, of the run only, and no URLs."""
    urls = [line.strip(b"\xef\xbb\xbf \t\r") for line in given_ if b"https://" in line]
    hubs = [url for url in urls if b"start" in url]
    news = [url for url in urls if b"news" in url]
    lasting = [url for url in urls if url not in hubs + news]
    return (
        lasting,
        news,
        len(hubs),
        len([line for line in given_ if line.strip() and b"https://" not in line]),
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines, st.booleans(), st.integers(1, 9))
def test_urls_of_a_file(tmp_path: Path, given_: list[bytes], ends: bool, size: int) -> None:
    path = tmp_path / "urls"
    path.write_bytes(b"\n".join(given_) + b"\n" * ends)
    source = UrlSource(path, identify)
    assert source.total() == path.read_bytes().count(b"\n")
    lasting, news, hubs, rejected = expected(given_)
    batches = list(source.batches(size))
    assert items(source, size) == lasting
    assert items(source, size, "news") == news
    assert sum(batch.run_only for batch in batches) == hubs
    assert sum(batch.skipped for batch in batches) == rejected
    assert sum(batch.read for batch in batches) == len(lasting) + len(news) + hubs + rejected


def test_it_says_which_line_is_no_url(tmp_path: Path) -> None:
    (tmp_path / "urls").write_text("https://example.com/1\n\nno url\nx\n")
    (batch,) = UrlSource(tmp_path / "urls", identify).batches()
    assert (batch.skipped, batch.example) == (2, "line 3: no URL")


def test_long_items_are_hashed_as_crawls_do(tmp_path: Path) -> None:
    (tmp_path / "urls").write_text("https://example.com/" + "a" * 300)
    (item,) = items(UrlSource(tmp_path / "urls", identify))
    assert item.startswith(b"hashed:")
