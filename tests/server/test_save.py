"""Filters in files: saved while they are in use, loaded whole or not at all, and nothing else."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from redis import Redis
from support.filters import URLS, add_to, at_round, small, with_windows
from support.servers import contents

from scrapy_bloom import ArchiveError, ConfigurationError
from scrapy_bloom.bloom.extras import archive, bitmaps

KINDS: list[dict[str, Any]] = [
    {"blocks": 3},
    {"blocks": 3, "capacity": 200},
    {"blocks": 2, "window": "3 days"},
    {"blocks": 2, "window": "3 days", "ring": "write-all"},
    {"blocks": 2, "counting": True},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "filter.gz"


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bitmaps are read and written in many chunks."""
    monkeypatch.setattr(bitmaps, "CHUNK_BYTES", 4096)


def comparable(client: Redis, key: str) -> dict[str, Any]:
    """Return all that a filter has stored, without what differs between filters."""
    found: dict[str, Any] = {}
    for name, value in contents(client, f"{{{key}:*").items():
        short = name.decode().replace(f"{{{key}:", "{")
        kept: Any = value
        if isinstance(value, dict):
            spec = {**json.loads(value[b"spec"]), "id": ""}
            own = b"id", b"v:default", b"made", b"spec"
            kept = {k: v for k, v in value.items() if k not in own}
            kept["spec"] = spec
        found[short] = (kept, client.expiretime(name.decode()))
    return found


@pytest.mark.each_server(others="slow")
@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.usefixtures("chunks")
def test_it_is_the_same_bit_for_bit_under_another_key(
    client: Redis, path: Path, options: dict[str, Any]
) -> None:
    bloom = small(client, "shop", **options)
    bloom.extend(URLS)
    before = contents(client)
    bloom.save(path)
    assert contents(client) == before
    assert path.stat().st_mode & 0o777 == 0o600, "it has secret seeds"
    loaded = small(client, "else", **options)
    loaded.load(path)
    bloom.copy("copy")
    for key in ("else", "copy"):
        assert comparable(client, key) == comparable(client, "shop")
    assert loaded.contains(URLS) == [True] * len(URLS)
    assert loaded.add_many(["quite new", URLS[0]]) == [True, False]
    assert loaded.open().id != bloom.open().id


def test_all_windows_are_saved(client: Redis, path: Path) -> None:
    bloom = with_windows(client, week="1 week")
    add_to(bloom, "week", "a")
    bloom.add("b")
    bloom.save(path)
    bloom.delete()
    bloom.load(path)
    assert not any(add_to(bloom, "week", "a"))
    assert add_to(bloom, "week", "b") == [True]
    assert bloom.contains(["a", "b"]) == [False, True]


def test_a_filter_that_does_not_exist_is_an_error_and_is_not_made(
    client: Redis, path: Path
) -> None:
    for act in (lambda b: b.save(path), lambda b: b.copy("copy"), lambda b: b.approx_len()):
        with pytest.raises(ConfigurationError, match="There is no filter 'shop:bloom'"):
            act(small(client))
    assert contents(client) == {}
    assert not path.exists()


def test_a_file_that_cannot_be_written_or_read_is_an_error(client: Redis, tmp_path: Path) -> None:
    bloom = small(client)
    bloom.open()
    (folder := tmp_path / "folder").mkdir()
    for place in (tmp_path / "missing" / "file", folder):
        with pytest.raises(ArchiveError, match="can't be written, because"):
            bloom.save(place)
    with pytest.raises(ArchiveError, match="can't be loaded, because .*No such file"):
        small(client, "else").load(tmp_path / "none")
    assert [*tmp_path.iterdir()] == [folder]


# -- loading: whole, or not at all --


def test_what_a_kill_leaves_of_a_filter_expires(client: Redis, path: Path) -> None:
    bloom, other = small(client), small(client, "other")
    bloom.extend(URLS)
    bloom.save(path)
    loading = archive.load(path, other.session, 1 << 30)

    with pytest.raises(KeyboardInterrupt):
        other.run(at_round(loading, 5, Mock(side_effect=KeyboardInterrupt)))
    left = client.keys("{other:*")
    assert left
    assert all(client.ttl(key) > 0 for key in left)


@pytest.fixture
def saved(client: Redis, path: Path) -> Path:
    """A saved filter of three blocks that is no longer on the server."""
    bloom = small(client, blocks=3, capacity=2_000)
    bloom.extend(URLS)
    bloom.save(path)
    bloom.delete()
    return path


def test_a_key_in_use_is_an_error_and_the_filter_stays(client: Redis, saved: Path) -> None:
    bloom = small(client)
    bloom.add("mine")
    before = contents(client)
    with pytest.raises(ConfigurationError, match=r"`key` 'shop:bloom' is in use\. Choose another"):
        small(client).load(saved)
    assert contents(client) == before


@pytest.mark.parametrize("round_", [2, 4, 8, 11, 12])
def test_a_filter_that_is_made_meanwhile_keeps_its_own_bits(
    client: Redis, saved: Path, round_: int
) -> None:
    """A crawl with the same sizes would find bits of other seeds in its bitmaps."""
    crawl, late = small(client, blocks=3, capacity=2_000), small(client, blocks=3, capacity=2_000)
    loading = archive.load(saved, late.session, 1 << 30)
    with pytest.raises(ConfigurationError, match="is in use"):
        late.run(at_round(loading, round_, lambda: crawl.extend(URLS[:500])))
    assert crawl.contains(URLS[:500]) == [True] * 500
    assert not client.keys("*load-*")
    assert sum(crawl.contains(f"other/{n}" for n in range(1000))) == 0


def test_more_memory_than_is_allowed_is_an_error(client: Redis, saved: Path) -> None:
    with pytest.raises(ArchiveError, match="its bitmaps take more than 1,000 bytes"):
        small(client).load(saved, max_memory=1_000)
    assert contents(client) == {}


def flipped(data: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(10, len(data) - 1)
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": lambda data, dice: data[: dice.randrange(len(data))],
    "flip": flipped,
    "append": lambda data, dice: data + dice.randbytes(9),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_an_error_and_installs_nothing(
    client: Redis, saved: Path, kind: str
) -> None:
    data, dice = saved.read_bytes(), random.Random(4)
    for _ in range(8):
        saved.write_bytes(DAMAGES[kind](data, dice))
        with pytest.raises(ArchiveError, match=r"^The file .* can't be loaded, because "):
            small(client).load(saved)
        assert contents(client) == {}


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no rings": lambda stored: stored.update(rings=[]),
    "no block 0": lambda stored: stored["rings"].pop(),
    "another order": lambda stored: stored["rings"].reverse(),
    "a shard twice": lambda stored: stored["rings"].append(stored["rings"][-1]),
    "too many blocks": lambda stored: stored["rings"][0].update(block=3),
    "blocks that are no numbers": lambda stored: stored["rings"][-1].update(block=False),
    "a shard without bitmaps": lambda stored: stored["rings"][0].update(fields={}),
    "fields that are a list": lambda stored: stored["rings"][0].update(fields=[]),
    "numbers in fields": lambda stored: stored["rings"][0]["fields"].update({"default:0-0.0": 8}),
    "a huge bitmap": lambda stored: stored["rings"][0]["fields"].update(
        {"default:0-0.0": "4294967296 1 0 1"}
    ),
    "counters": lambda stored: stored["rings"][0]["fields"].update({"default:0-0.0": "8 1 0 4"}),
    "another spec": lambda stored: stored.update(spec="{}"),
    "no spec": lambda stored: stored.pop("spec"),
}


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("forgery", [*FORGED, "too long"])
def test_a_forged_file_is_an_error_and_installs_nothing(
    client: Redis, saved: Path, forgery: str
) -> None:
    """Although its checksum is right."""
    line, _, rest = gzip.decompress(saved.read_bytes()).partition(b"\n")
    stored = json.loads(line)
    FORGED.get(forgery, lambda _: None)(stored)
    more = b"\0" if forgery == "too long" else b""
    saved.write_bytes(gzip.compress(json.dumps(stored).encode() + b"\n" + rest + more))
    with pytest.raises(ArchiveError, match="can't be loaded, because"):
        small(client).load(saved, max_memory=100 << 20)
    assert contents(client) == {}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[" * 100_000, b"1", b"[]", b"{}", b'{"spec":1,"rings":[]}']
)
def test_any_other_file_is_an_error(client: Redis, path: Path, data: bytes, packed: bool) -> None:
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(ArchiveError):
        small(client).load(path)
    assert not client.keys()
