"""Sources of a migration: what they yield, and what a later pass from a position yields."""

import hashlib
import io
import os
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import Server

from scrapy_bloom.errors import ConfigurationError, StorageError
from scrapy_bloom.migration.batches import END, POSITION, Source
from scrapy_bloom.migration.lines import MAX_LINE
from scrapy_bloom.migration.sources import SeenSource, SetSource, UrlPipe, UrlSource

if redis.__version__.startswith("5.0."):
    # It leaves the closing of a socket to a server that was killed to the garbage collector.
    pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

KEY = "shop:dupefilter"
W = "lasting"


def digest(number: int) -> bytes:
    return hashlib.sha1(str(number).encode()).digest()


def members(count: int) -> list[bytes]:
    return [digest(number).hex().encode() for number in range(count)]


def items(source: Source, position: str = "", size: int = 100, window: str = W) -> list[bytes]:
    batches = source.batches(position, size)
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
    assert (source.total(), source.size()) == (count, count)
    assert source.name == "the SET 'shop:dupefilter' on label"
    assert set(items(source)) == {digest(number) for number in range(count)}
    batches = list(source.batches(""))
    assert sum(batch.read for batch in batches) >= count
    assert [batch.position == END for batch in batches] == [False] * (len(batches) - 1) + [True]


def test_other_members_are_counted_and_lose_no_fingerprint(client: redis.Redis) -> None:
    others = [b"", b"x", b"\xff\xfe", digest(0), members(1)[0][:-1], members(1)[0] + b"\n"]
    client.sadd(KEY, *members(3_000), *others)
    batches = list(SetSource(client, KEY, "label", W).batches("", 100))
    found = {item for batch in batches for item in batch.items.get(W, [])}
    assert found == {digest(number) for number in range(3_000)}
    assert sum(batch.rejected for batch in batches) >= len(others)
    assert any(batch.example in map(repr, others) for batch in batches)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 40), st.integers(0, 4_000), st.integers(0, 1_900))
def test_a_set_read_on_from_a_position_although_it_changed(
    client: redis.Redis, stop: int, added: int, removed: int
) -> None:
    """What is in it all the time is read, although its table was made larger or smaller."""
    client.flushall()
    client.sadd(KEY, *members(2_000))
    position, found = "", []
    for number, batch in enumerate(SetSource(client, KEY, "label", W).batches("", 40)):
        if number >= stop or batch.position == END:
            break
        found += batch.items[W]
        position = batch.position
        assert POSITION.fullmatch(position)
    if added:
        client.sadd(KEY, *members(2_000 + added)[2_000:])
    if removed:
        client.srem(KEY, *members(removed))
    found += items(SetSource(client, KEY, "label", W), position)
    assert {digest(number) for number in range(removed, 2_000)} <= set(found)


@pytest.mark.parametrize(("make", "what"), [("set", "a string"), ("", "nothing")])
def test_a_key_that_is_no_set(client: redis.Redis, make: str, what: str) -> None:
    if make:
        client.set(KEY, "x")
    remedy = f"holds {what}, .*--from-set KEY .*its server with --from-server"
    with pytest.raises(ConfigurationError, match=remedy):
        SetSource(client, KEY, "label", W)


def test_positions_in_a_set_are_those_of_its_process(any_binary: str) -> None:
    with Server(any_binary) as server, server.client() as client:
        client.sadd(KEY, *members(3))
        source = SetSource(client, KEY, "label", W)
        before = source.identity()
        assert before == source.identity()
        server.kill()
        with pytest.raises(StorageError, match="label"):
            items(source)
        server.start()
        assert source.identity() not in (before, "")


def test_a_server_that_does_not_say_which_it_is(any_binary: str) -> None:
    with Server(any_binary) as server, server.client() as client:
        client.sadd(KEY, *members(3))
        client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read", "-info")
        with server.client(username="reader", password="x") as reader:
            source = SetSource(reader, KEY, "label", W)
            assert source.identity() == ""
            assert len(items(source)) == 3


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
        assert source.size() == 0
        client.set(KEY, "x")
        with pytest.raises(StorageError, match="under the SET's key: .*--from-set KEY"):
            source.size()
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
    assert source.identity() == source.identity() != ""
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
    batches = list(source.batches("", 100))
    assert sum(batch.incomplete for batch in batches) == 1
    assert sum(batch.read for batch in batches) == 3_000
    found = []
    for batch in batches:
        found += batch.items.get(W, [])
        assert POSITION.fullmatch(batch.position)
        if batch.position != END:
            assert found + items(source, batch.position) == entries


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "requests.seen").touch()
    assert items(SeenSource(tmp_path, W)) == []
    assert items(UrlSource(tmp_path / "requests.seen", identify)) == []


@pytest.mark.parametrize("kind", ["seen", "urls"])
def test_positions_in_a_file_are_those_of_its_contents(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0a\n")
    source = SeenSource(path, W) if kind == "seen" else UrlSource(path, identify)
    before = source.identity()
    assert before == source.identity()
    os.utime(path, (0, 0))
    after = source.identity()
    assert after != before
    path.unlink()
    assert source.identity() not in (before, after)


def write_own(path: Path, form: str, *fingerprints: bytes) -> None:
    """Write what a crawl writes with a fingerprinter of its own."""
    write = {
        "text": lambda one: one.hex().encode() + b"\n",
        "binary": lambda one: len(one).to_bytes(2, "big") + one,
    }
    path.write_bytes(b"".join(map(write[form], fingerprints)))


RANDOM = hashlib.shake_128(b"random").digest(300_000)


@pytest.mark.parametrize(
    "data",
    [
        *(RANDOM, RANDOM[:10_000], b"\x1f\x8b\x08\x00" + RANDOM[:9_000], b"\x02\x00" + RANDOM),
        *(b'{"url": "https://example.com"}', b"# Title\n\nSome text\nabcd\n", b"x", b"\0\1"),
        b"".join(hashlib.sha1(b"x").hexdigest().encode() + b"  name\n" for _ in range(50)),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "requests.seen").write_bytes(data)
    with pytest.raises(ConfigurationError, match="--from-seen '.*' is no requests.seen"):
        SeenSource(tmp_path, W)


@pytest.mark.parametrize("form", ["text", "binary"])
@pytest.mark.parametrize("length", [1, 8, 32, 0])
def test_files_of_other_fingerprinters_are_taken(tmp_path: Path, form: str, length: int) -> None:
    path = tmp_path / "requests.seen"
    fingerprints = [digest(n) * 2 for n in range(3_000)]
    fingerprints = [one[: length or 1 + one[0] % 39] for one in fingerprints]
    write_own(path, form, *fingerprints)
    assert items(SeenSource(path, W)) == fingerprints
    path.write_bytes(path.read_bytes()[:-1])
    assert items(SeenSource(path, W))[:2_999] == fingerprints[:-1]


@pytest.mark.parametrize("form", ["text", "binary"])
def test_a_file_whose_first_entry_was_cut_off(tmp_path: Path, form: str) -> None:
    path = tmp_path / "requests.seen"
    fingerprints = [digest(n) for n in range(3_000)]
    write_own(path, form, *fingerprints)
    data = path.read_bytes()
    for cut in range(1, data.index(digest(0).hex().encode() if form == "text" else digest(0)) + 20):
        path.write_bytes(data[:cut] + data)
        source = SeenSource(path, W)
        assert items(source) == fingerprints
        assert sum(batch.incomplete for batch in source.batches("")) == 1


def test_a_file_whose_first_line_was_cut_off_before_scrapy_2_19_went_on(tmp_path: Path) -> None:
    path = tmp_path / "requests.seen"
    fingerprints = [digest(n) for n in range(100)]
    write_own(path, "binary", *fingerprints)
    data = path.read_bytes()
    for cut in range(1, 40):
        path.write_bytes(digest(0).hex().encode()[:cut] + data)
        assert items(SeenSource(path, W)) == fingerprints


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
            *(b"https://start.example", b"no url", b"", b"  ", b"\xff", b"x" * (MAX_LINE + 5)),
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
def test_urls_of_a_file_from_every_position(
    tmp_path: Path, given_: list[bytes], ends: bool, size: int
) -> None:
    path = tmp_path / "urls"
    path.write_bytes(b"\n".join(given_) + b"\n" * ends)
    source = UrlSource(path, identify)
    assert source.total() == path.read_bytes().count(b"\n")
    lasting, news, hubs, rejected = expected(given_)
    batches = list(source.batches("", size))
    assert items(source, size=size) == lasting
    assert items(source, size=size, window="news") == news
    assert sum(batch.run_only for batch in batches) == hubs
    assert sum(batch.rejected for batch in batches) == rejected
    assert sum(batch.read for batch in batches) == len(lasting) + len(news) + hubs + rejected
    found = []
    for batch in batches:
        found += batch.items.get(W, [])
        if batch.position != END:
            assert found + items(source, batch.position) == lasting


@given(lines, st.integers(1, 9))
def test_a_pipe_is_kept_for_the_second_pass(given_: list[bytes], size: int) -> None:
    text = b"\n".join(given_)
    source = UrlPipe(io.BytesIO(text), "stdin", identify, io.BytesIO())
    assert source.readable_again
    assert (source.identity(), source.total()) == ("", None)
    for _ in range(3):
        assert items(source, size=size) == expected(given_)[0]


def test_a_pipe_need_not_be_kept() -> None:
    source = UrlPipe(io.BytesIO(b"https://a\nhttps://b"), "stdin", identify, None)
    assert not source.readable_again
    assert items(source) == [b"https://a", b"https://b"]


def test_long_items_are_hashed_as_crawls_do(tmp_path: Path) -> None:
    (tmp_path / "urls").write_text("https://example.com/" + "a" * 300)
    (item,) = items(UrlSource(tmp_path / "urls", identify))
    assert item.startswith(b"hashed:")
