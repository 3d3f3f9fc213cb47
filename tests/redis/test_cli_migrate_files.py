"""``scrapy bloom migrate``: from Scrapy's requests.seen and from lists of URLs."""

from pathlib import Path

import pytest
import redis
from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.request import RequestFingerprinter
from support.cli import KEY, Call, give

from scrapy_bloom import BloomFilter

OURS = "scrapy_bloom.fingerprinter.ScrapyRedisFingerprinter"
URLS = [f"https://example.com/{number}" for number in range(300)]


# -- from requests.seen --


class OwnFingerprinter:
    def fingerprint(self, request: Request) -> bytes:
        return request.url.encode() * 20


def test_what_scrapy_has_seen_a_crawl_has_seen(move: Call, client: redis.Redis) -> None:
    fingerprinter = OwnFingerprinter()
    fingerprints = [fingerprinter.fingerprint(Request(url)) for url in URLS]
    data = b"".join(len(one).to_bytes(2, "big") + one for one in fingerprints)
    Path("job").mkdir()
    Path("job/requests.seen").write_bytes(data + data[:9])
    project = {"REQUEST_FINGERPRINTER_CLASS": type(fingerprinter)}
    done = move("--from-seen", "job", **project)
    assert done.code == 1
    assert "the file 'job/requests.seen': 301 entries" in done.out
    assert "1 are no fingerprints, and were skipped, such as entry 301" in done.out
    done = move("--from-seen", "job/requests.seen", "--json", **project)
    assert (done.json["read"], done.json["new"], done.json["skipped"]) == (301, 0, 1)
    assert Path("job/requests.seen").read_bytes() == data + data[:9]


def test_scrapys_own_file_and_check_agree(
    move: Call, shop: Call, client: redis.Redis, tmp_path: Path
) -> None:
    project = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    scrapys = RFPDupeFilter(str(tmp_path), fingerprinter=RequestFingerprinter())
    assert not any(scrapys.request_seen(Request(url)) for url in URLS)
    scrapys.close("finished")
    assert move("--from-seen", ".", **project).code == 0
    assert shop("check", *URLS, **project).code == 0
    assert shop("check", "https://example.com/new", **project).code == 1
    assert "is never found with it" in move("--from-seen", ".").err


# -- from URLs --


def test_urls_of_a_file(move: Call, shop: Call, client: redis.Redis) -> None:
    Path("urls").write_text("\n".join([*URLS, "", "no url"]))
    done = move("--from-urls", "urls", REQUEST_FINGERPRINTER_CLASS=OwnFingerprinter)
    assert done.code == 1
    assert "1 are no URLs, and were skipped, such as line 302: 'no url' is no URL" in done.out
    assert "Verified: all 300 are seen" in done.out
    assert shop("check", *URLS, REQUEST_FINGERPRINTER_CLASS=OwnFingerprinter).code == 0


@pytest.mark.parametrize("verify", [True, False])
def test_urls_of_a_pipe(
    move: Call, shop: Call, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    give(monkeypatch, "".join(f"{url}\n" for url in URLS).encode())
    done = move("--from-urls", "-", "--json", *([] if verify else ["--no-verify"]))
    assert (done.code, done.err, done.json["source"]) == (0, "", "the standard input")
    assert (done.json["new"], done.json["checked"]) == (300, 300 if verify else 0)
    assert shop("check", *URLS, REQUEST_FINGERPRINTER_CLASS=OURS).code == 0
    assert not list(Path.cwd().iterdir())


def test_urls_go_where_crawls_look_for_them(move: Call, shop: Call, client: redis.Redis) -> None:
    rules = {"BLOOM_RECRAWL_RULES": [("/1", "1 day"), ("/2", "run")]}
    Path("urls").write_text("\n".join(URLS))
    done = move("--from-urls", "urls", **rules)
    assert done.code == 0
    assert "111 have the window 'run', which no filter remembers" in done.out
    assert f"189 recorded in '{KEY}:1-day', {KEY!r} on " in done.out
    assert len(BloomFilter(client, KEY)) == 78
    assert len(BloomFilter(client, f"{KEY}:1-day")) == 111
    urls = [url for url in URLS if "/2" not in url]
    assert shop("check", *urls, REQUEST_FINGERPRINTER_CLASS=OURS, **rules).code == 0
    done = move("--from-urls", "urls", "--window", "1-day", "--json", **rules)
    assert (done.json["read"], done.json["new"]) == (300, 189)
    client.sadd("shop:dupefilter", *(f"{number:040x}" for number in range(3)))
    assert "BLOOM_RECRAWL_RULES match URLs" in move("--from-set", **rules).err
    assert move("--from-set", "--window", "1-day", **rules).err == ""
    assert len(BloomFilter(client, f"{KEY}:1-day")) == 303
