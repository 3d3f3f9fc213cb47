"""``scrapy bloom migrate``: what other dupefilters have seen is seen, and nothing else."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy_redis.dupefilter import RFPDupeFilter as ScrapyRedisFilter
from support.cli import KEY, URLS, Call, fingerprints, give
from support.filters import assert_expiries
from support.servers import Server

from scrapy_bloom import BloomFilter, StorageError
from scrapy_bloom.bloom.protocol.notes import note_crawl
from scrapy_bloom.cli import output
from scrapy_bloom.migrate import Source, from_seen, from_set, migrate

SET = "shop:dupefilter"
FINGERPRINTER = "scrapy_bloom.migrate.ScrapyRedisFingerprinter"
ANY = [*("https://example.com/?b=2&a=1#c", "http://EXAMPLE.com/ä"), *URLS]


def states(shop: Call, urls: Sequence[str], **settings: Any) -> set[str]:
    """Return what ``check`` says of URLs."""
    return {row["state"] for row in shop("check", *urls, "--json", **settings).json["rows"]}


# -- a SET of scrapy-redis --


def fill(client: Any, urls: Sequence[str]) -> None:
    """Have scrapy-redis see URLs."""
    seen = ScrapyRedisFilter(client, SET)
    assert not any(seen.request_seen(Request(url)) for url in urls)


def test_what_scrapy_redis_has_seen(shop: Call, client: Redis) -> None:
    """Once more finds nothing new; members that are no fingerprints are skipped."""
    settings = {"REQUEST_FINGERPRINTER_CLASS": FINGERPRINTER, "BLOOM_RECRAWL_AFTER": "2 months"}
    fill(client, ANY)
    members = client.smembers(SET)
    done = shop("migrate", "--from-set", SET, "--json", **settings)
    assert (done.code, done.err) == (0, "")
    assert [done.json[name] for name in ("read", "new", "skipped")] == [len(ANY), len(ANY), 0]
    assert states(shop, ANY, **settings) == {"remembered"}
    assert states(shop, ["https://example.com/new"], **settings) == {"not remembered"}
    assert client.smembers(SET) == members
    client.sadd(SET, "no fingerprint", b"\xff", "abc")
    done = shop("migrate", "--from-set", SET, **settings)
    assert done.code == 1
    assert f": {len(ANY) + 3} entries of the SET '{SET}' on unix://" in done.out
    assert ", 0 of them new, 3 skipped\n" in done.out
    (row,) = shop("info", "--json", **settings).json["rows"]
    assert (row["urls"], row["forgotten"] != "never") == (len(ANY), True)


def test_a_key_that_is_no_set(shop: Call, client: Redis) -> None:
    client.set(SET, "text")
    done = shop("migrate", "--from-set", SET, REQUEST_FINGERPRINTER_CLASS=FINGERPRINTER)
    done.refused(f"There is no SET '{SET}' on", "Name the key that scrapy-redis uses")


def test_a_server_that_ends_meanwhile(own_server: Server, client: Redis) -> None:
    with own_server.client() as other:
        other.sadd(SET, *[f"{number:040x}" for number in range(20_000)])
        source = from_set(other, SET, "the other server")
        entries = iter(source.entries)
        next(entries)
        other.shutdown(nosave=True)
    with pytest.raises(StorageError, match="the other server"):
        migrate(BloomFilter(client, KEY), source._replace(entries=entries))


# -- requests.seen --


def test_what_scrapy_has_seen_in_a_jobdir(shop: Call, client: Redis, tmp_path: Path) -> None:
    """Of the installed version, behind lines of an older one, with an incomplete entry."""
    file = tmp_path / "requests.seen"
    file.write_text("".join(f"{item.hex()}\r\n\n" for item in fingerprints(URLS[:5])))
    seen = RFPDupeFilter(str(tmp_path))
    for url in URLS[5:10]:
        seen.request_seen(Request(url))
    seen.close("")
    complete = file.read_bytes()
    file.write_bytes(complete + b"\0\x14cut")
    done = shop("migrate", "--from-seen", str(tmp_path), "--json")
    assert [done.json[name] for name in ("read", "new", "skipped")] == [11, 10, 1]
    assert states(shop, URLS[:10]) == {"remembered"}
    assert states(shop, URLS[10:]) == {"not remembered"}
    file.write_bytes(complete)
    assert shop("migrate", "--from-seen", str(file)).code == 0


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\0", b"zz\n", b"\0\0\0\0", b"abc", b"\x01"])
def test_damaged_files_give_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "requests.seen").write_bytes(data)
    assert [one for one in from_seen(tmp_path).entries if not isinstance(one, str)] == []


# -- URLs --


def test_urls_have_the_windows_of_their_rules(
    shop: Call, client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {"BLOOM_RECRAWL_RULES": [["/1$", "1 day"], ["/2$", "run"]]}
    lines = "\ufeff" + "\r\n".join([*URLS[:5], "", "nonsense", "https://[", f" {URLS[3]} "])
    path = tmp_path / "urls.txt"
    path.write_text(lines, "utf-8")
    done = shop("migrate", "--from-urls", str(path), **rules)
    assert done.code == 1
    assert ": 8 entries of the file" in done.out
    assert ", 4 of them new, 3 skipped\n" in done.out
    skipped = "Skipped entries aren't fingerprints or URLs, or each run crawls them, such as"
    assert f"{skipped} '{URLS[2]}'\n" in done.out
    rows = shop("check", *URLS[:5], "--json", **rules).json["rows"]
    assert [(row["state"], row["window"], row["rule"]) for row in rows] == [
        ("remembered", "default", None),
        ("remembered", "1-day", "/1$"),
        ("crawled by each run", "run", "/2$"),
        ("remembered", "default", None),
        ("remembered", "default", None),
    ]
    give(monkeypatch, URLS[7].encode())
    assert shop("migrate", "--from-urls", "-", **rules).code == 0
    assert states(shop, URLS[7:8], **rules) == {"remembered"}


def test_outside_of_a_project_a_filter_keeps_its_windows(
    shop: Call, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    bloom = BloomFilter(client, KEY, window="2 months")
    bloom.run(note_crawl(bloom.session, "shop"))
    give(monkeypatch, URLS[0].encode())
    outside: dict[str, Any] = {"spiders": (), "SPIDER_MODULES": []}
    assert shop("migrate", "--from-urls", "-", "--key", KEY, **outside).code == 0
    assert_expiries(client)
    assert bloom.info().count == 1


def test_an_interruption_leaves_what_is_recorded(
    shop: Call, bloom: BloomFilter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a terminal it shows progress; the next run records the rest."""
    count, path = 20_000, tmp_path / "urls.txt"
    path.write_text("".join(f"https://example.com/{number}\n" for number in range(count)))

    def interrupted(bloom: BloomFilter, source: Source, show: Callable[[int], object]) -> None:
        def interrupt(done: int) -> None:
            show(done)
            raise KeyboardInterrupt

        migrate(bloom, source, interrupt)

    with monkeypatch.context() as patch:
        patch.setattr("scrapy_bloom.cli.migrate.migrate", interrupted)
        patch.setattr(output, "SHOW_SECONDS", 0)
        patch.setattr(sys.stderr, "isatty", lambda: True)
        done = shop("migrate", "--from-urls", str(path))
    done.refused("interrupted. Run the same command again")
    assert "\r8,192 of 20,000 (41%) entries recorded" in done.err
    # Of so many, a few may be taken for seen.
    assert 8_182 < bloom.info().count <= 8_192
    assert shop("migrate", "--from-urls", str(path)).code == 0
    assert count - 20 < bloom.info().count <= count
