"""Sources of a migration: what they yield, and whether it is all of it."""

import hashlib
from collections import defaultdict
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from redis import Redis
from support.examples import examples
from support.servers import Server

from scrapy_bloom import migrate
from scrapy_bloom.bloom.errors import ConfigurationError, StorageError
from scrapy_bloom.migrate import SeenSource, SetSource, Source

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


# -- a SET --


@pytest.mark.parametrize("count", [1, 100, 5_000])
def test_all_members_of_a_set(client: Redis, count: int) -> None:
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


def test_other_members_are_counted_and_lose_no_fingerprint(client: Redis) -> None:
    others = [b"", b"x", b"\xff\xfe", digest(0), members(1)[0][:-1], members(1)[0] + b"\n"]
    client.sadd(KEY, *members(3_000), *others)
    found, wrong = read(SetSource(client, KEY, "label", W))
    assert set(found[W]) == {digest(number) for number in range(3_000)}
    assert set(wrong) == {repr(other)[:60] for other in others}


@examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 40), st.integers(0, 4_000), st.integers(0, 1_900))
def test_what_is_in_a_set_all_the_time_is_read(
    client: Redis, number: int, added: int, removed: int
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


def test_a_key_that_is_no_set(client: Redis) -> None:
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


def test_requests_seen_that_is_written_to_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "requests.seen"
    path.write_bytes(b"0a\n")
    source = SeenSource(path, W)
    path.write_bytes(b"0b\n0c\n")
    assert items(source) == [b"\x0a"]
