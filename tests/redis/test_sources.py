"""Sources of a migration: what they yield, and whether it is all of it."""

import hashlib
import io
from collections import defaultdict
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.examples import examples
from support.servers import Server

from scrapy_bloom import migrate
from scrapy_bloom.bloom.errors import ConfigurationError, StorageError
from scrapy_bloom.migrate import SeenSource, SetSource, Source, UrlSource, open_file

KEY = "shop:dupefilter"
W = "default"


def digest(number: int) -> bytes:
    return hashlib.sha1(str(number).encode()).digest()


def members(count: int) -> list[bytes]:
    return [digest(number).hex().encode() for number in range(count)]


def read(source: Source) -> tuple[dict[str, list[bytes]], list[str]]:
    """Return all that a source has, by window, and what is no fingerprint or URL."""
    found, wrong = defaultdict[str, list[bytes]](list), list[str]()
    for entry in source.entries():
        if isinstance(entry, str):
            wrong.append(entry)
        else:
            found[entry[0]].append(entry[1])
    return found, wrong


def items(source: Source) -> list[bytes]:
    return read(source)[0][W]


def url_source(data: bytes) -> UrlSource:
    return UrlSource(io.BytesIO(data), "a file", identify)


def identify(url: str) -> tuple[str, bytes]:
    if "://" not in url:
        raise ConfigurationError("no URL")
    return ("run" if "start" in url else "news" if "news" in url else W), url.encode()


# -- a SET --


@pytest.mark.parametrize("count", [1, 100, 5_000])
def test_all_members_of_a_set(client: redis.Redis, count: int) -> None:
    client.sadd(KEY, *members(count))
    source = SetSource(client, KEY, "label", W)
    assert source.total == count
    assert source.name == "the SET 'shop:dupefilter' on label"
    found, wrong = read(source)
    assert set(found[W]) == {digest(number) for number in range(count)}
    assert wrong == []
    client.spop(KEY)
    with pytest.raises(StorageError, match=f"{count:,} entries, of which {count - 1:,} are left"):
        items(source)
    client.delete(KEY)
    with pytest.raises(StorageError, match="of which 0 are left"):
        items(source)


def test_other_members_are_counted_and_lose_no_fingerprint(client: redis.Redis) -> None:
    others = [b"", b"x", b"\xff\xfe", digest(0), members(1)[0][:-1], members(1)[0] + b"\n"]
    client.sadd(KEY, *members(3_000), *others)
    found, wrong = read(SetSource(client, KEY, "label", W))
    assert set(found[W]) == {digest(number) for number in range(3_000)}
    assert set(wrong) == {repr(other)[:60] for other in others}


@examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 40), st.integers(0, 4_000), st.integers(0, 1_900))
def test_what_is_in_a_set_all_the_time_is_read(
    client: redis.Redis, number: int, added: int, removed: int
) -> None:
    """Although its table grows or shrinks during the scan."""
    client.flushall()
    client.sadd(KEY, *members(2_000))
    found: list[object] = []
    source = SetSource(client, KEY, "label", W)
    source.total = 0  # some are removed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "SCANNED", 40)
        for place, entry in enumerate(source.entries()):
            found.append(entry)
            if place == 40 * number:
                client.sadd(KEY, *members(2_000 + added)[1_999:])
                client.srem(KEY, b"", *members(removed))
    assert {(W, digest(number)) for number in range(removed, 2_000)} <= set(found)


def test_a_key_that_is_no_set(client: redis.Redis) -> None:
    remedy = "there is no SET '.*' on label: .*--from-set KEY .*its server with --from-server"
    with pytest.raises(ConfigurationError, match=remedy):
        SetSource(client, KEY, "label", W)
    client.set(KEY, "x")
    with pytest.raises(StorageError, match="something else under the SET's key: .*--from-set KEY"):
        SetSource(client, KEY, "label", W)


def test_errors_of_its_server_name_its_options(any_binary: str) -> None:
    with Server(any_binary) as server, server.client() as client:
        client.sadd(KEY, *members(3))
        client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read", "-sscan")
        with server.client(username="reader", password="x") as reader:
            with pytest.raises(StorageError, match="grant the SET's key and .* SSCAN") as caught:
                items(SetSource(reader, KEY, "label", W))
            assert "filter" not in str(caught.value)
        source = SetSource(client, KEY, "label", W)
        client.delete(KEY)
        client.set(KEY, "x")
        with pytest.raises(StorageError, match="under the SET's key: .*--from-set KEY"):
            items(source)
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


def test_all_of_requests_seen(tmp_path: Path) -> None:
    """Its forms: unit/test_requests_seen.py."""
    entries = [digest(number) for number in range(3_000)]
    data = b"".join(b"\0\x14" + entry for entry in entries)
    (tmp_path / "requests.seen").write_bytes(data + b"\0\x14cut")
    for path in (tmp_path, tmp_path / "requests.seen"):
        source = SeenSource(path, W)
        assert source.total == 3_001
        found, wrong = read(source)
        assert found[W] == entries
        assert wrong == ["entry 3,001"]


def test_requests_seen_that_is_written_to_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "requests.seen"
    path.write_bytes(b"0a\n")
    source = SeenSource(path, W)
    path.write_bytes(b"0b\n0c\n")
    assert items(source) == [b"\x0a"]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--from-seen '.*requests.seen' cannot be read"):
        SeenSource(tmp_path, W)
    with pytest.raises(ConfigurationError, match="--from-urls '.*' cannot be read: No such file"):
        open_file(tmp_path / "x", "--from-urls")
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        open_file(tmp_path, "--from-urls")


# -- URLs --

lines = st.lists(
    st.sampled_from(
        [
            *(b"https://example.com/1", b"https://example.com/\xc3\xa4", b"https://news.example"),
            *(b"https://start.example", b"no url", b"", b"  ", b"\xff", b"x" * 100_000),
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


@given(lines, st.booleans())
def test_urls_of_a_file(given_: list[bytes], ends: bool) -> None:
    data = b"\n".join(given_) + b"\n" * ends
    source = url_source(data)
    assert source.total == len(io.BytesIO(data).readlines())
    lasting, news, hubs, rejected = expected(given_)
    for _ in range(2):
        found, wrong = read(source)
        assert (found[W], found["news"]) == (lasting, news)
        assert (len(found["run"]), len(wrong)) == (hubs, rejected)


def test_it_says_which_line_is_no_url() -> None:
    _, wrong = read(url_source(b"https://example.com/1\n\nno url\nx\n"))
    assert wrong == ["line 3: no URL", "line 4: no URL"]
