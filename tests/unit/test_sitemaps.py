"""``SitemapVersions`` without a crawl: which request has which version."""

import gzip
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import chain, zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import Response, XmlResponse
from scrapy.spiders import SitemapSpider
from scrapy.utils.test import get_crawler

from scrapy_bloom import SitemapVersions
from scrapy_bloom.fingerprinter import MAX_VERSION
from scrapy_bloom.sitemaps import is_final, short_version, sitemap_version

SITE = "https://example.com"
NAMESPACES = (
    'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:xhtml="http://www.w3.org/1999/xhtml"'
)
DAY, LATER, LAST = "2020-01-01", "2020-01-02", "2020-01-03"


class Shop(SitemapVersions, SitemapSpider):
    name = "shop"
    sitemap_rules = (("/p/", "parse"),)

    def parse(self, response: Response) -> None: ...


class WithAlternates(Shop):
    sitemap_alternate_links = True


class List(Shop):
    """Calls it, and returns a list."""

    def sitemap_filter(self, entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [one for one in super().sitemap_filter(entries) if "/p/1" not in one["loc"]]


def make(cls: type[Shop] = Shop, forgotten: Callable[[], str | None] = lambda: "default:0") -> Any:
    crawler = get_crawler(cls)
    spider: Any = crawler._create_spider("shop")
    spider.bloom_forgotten = forgotten
    return spider


def entry(path: str, lastmod: str = "", kind: str = "url", alternates: Iterable[str] = ()) -> str:
    links = "".join(f'<xhtml:link rel="alternate" href="{SITE}{path}"/>' for path in alternates)
    date = f"<lastmod>{lastmod}</lastmod>" if lastmod else ""
    return f"<{kind}><loc>{SITE}{path}</loc>{date}{links}</{kind}>"


def urlset(*entries: str, root: str = "urlset") -> bytes:
    return f"<{root} {NAMESPACES}>{''.join(entries)}</{root}>".encode()


def index(*entries: str) -> bytes:
    return urlset(*entries, root="sitemapindex")


def answer(body: bytes, path: str = "/s.xml", version: str = "") -> Response:
    meta = {"bloom_version": version} if version else {}
    url = SITE + path
    return XmlResponse(url, body=body, request=Request(url, meta=meta))


def found(requests: Iterable[Request]) -> list[tuple[str, str]]:
    return [
        (request.url.removeprefix(SITE), request.meta.get("bloom_version", ""))
        for request in requests
    ]


def test_each_page_has_the_version_of_its_entry() -> None:
    body = urlset(entry("/p/1", DAY), entry("/p/2"), entry("/other", LATER), entry("/p/ä", LAST))
    pages = [("/p/1", DAY), ("/p/2", ""), ("/p/%C3%A4", LAST)]
    assert found(make()._parse_sitemap(answer(body))) == pages


def test_dates_of_today_are_versions_of_pages_and_not_of_sitemaps() -> None:
    today = datetime.now(UTC)
    texts = [f"{today - timedelta(days):%Y-%m-%d}" for days in (0, 3)]
    pages = urlset(*(entry(f"/p/{n}", text) for n, text in enumerate(texts)))
    assert found(make()._parse_sitemap(answer(pages))) == [("/p/0", texts[0]), ("/p/1", texts[1])]
    sitemaps = index(*(entry(f"/{n}.xml", text, "sitemap") for n, text in enumerate(texts)))
    (_, first), (_, second) = found(make()._parse_sitemap(answer(sitemaps)))
    assert not first, "it may change again today"
    assert second.startswith(texts[1])


def test_sitemaps_have_versions_that_end_when_something_is_forgotten() -> None:
    body = index(entry("/a.xml", DAY, "sitemap"), entry("/b.xml", kind="sitemap"))
    counts = iter(["default:0", "default:0", "default:1", None])
    spider = make(forgotten=lambda: next(counts))
    first, second, third, fourth = (found(spider._parse_sitemap(answer(body))) for _ in range(4))
    assert first == second == [("/a.xml", f"{DAY} default:0"), ("/b.xml", "")]
    assert third[0] == ("/a.xml", f"{DAY} default:1")
    assert fourth[0] == ("/a.xml", "")


def test_without_the_dupefilter_and_by_choice_sitemaps_are_read_in_each_run() -> None:
    class All(Shop):
        sitemap_skip_unchanged = False

    body = index(entry("/a.xml", DAY, "sitemap"))
    assert found(make(All)._parse_sitemap(answer(body))) == [("/a.xml", "")]
    alone: Any = get_crawler(Shop)._create_spider("shop")
    assert found(alone._parse_sitemap(answer(body))) == [("/a.xml", "")]


def test_filters_of_the_spiders_own_go_first() -> None:
    body = urlset(entry("/p/1", DAY), entry("/p/2", LATER))
    assert found(make(List)._parse_sitemap(answer(body))) == [("/p/2", LATER)]


def test_alternates_have_versions() -> None:
    body = urlset(entry("/p/1", DAY, alternates=["/p/2", "/p/3"]), entry("/p/3", LAST))
    requests = found(make(WithAlternates)._parse_sitemap(answer(body)))
    assert requests == [
        ("/p/1", DAY),
        ("/p/2", DAY),
        ("/p/3", LAST),
        ("/p/3", LAST),
    ]
    assert found(make()._parse_sitemap(answer(body))) == [requests[0], requests[2]]


WHOLE = urlset(entry("/p/1", DAY), entry("/p/2", LATER))


@pytest.mark.parametrize(
    ("body", "pages"),
    [
        (WHOLE[: WHOLE.index(b"</url>") + 6], 1),
        (b"<html><body>Are you human?</body></html>", 0),
    ],
)
def test_a_part_of_a_sitemap_does_not_count_as_read(body: bytes, pages: int) -> None:
    requests: list[Request] = []
    with pytest.raises(ValueError, match=r"not a whole one: it is read again after BLOOM_RETRY"):
        requests.extend(make()._parse_sitemap(answer(body, version="1")))
    assert len(requests) == pages
    assert len(list(make()._parse_sitemap(answer(body)))) == pages, "without a version, as Scrapy"


def test_sitemaps_that_are_read_at_the_same_time_do_not_mix() -> None:
    spider = make()
    bodies = [
        urlset(*(entry(f"/p/{number}", day) for number in range(9))) for day in (DAY, LATER, LAST)
    ]
    readers = [spider._parse_sitemap(answer(body)) for body in bodies]
    turns = chain.from_iterable(zip_longest(*readers))
    for number, request in enumerate(turns):
        assert found([request]) == [(f"/p/{number // 3}", (DAY, LATER, LAST)[number % 3])]


@pytest.mark.parametrize(
    "body",
    [
        WHOLE,
        b'<?xml version="1.0"?>' + WHOLE + b"<!-- made by a plug-in -->\n",
        gzip.compress(WHOLE),
        f"<sitemapindex {NAMESPACES} />".encode(),
        f'<s:urlset xmlns:s="x">{""}</s:urlset>'.encode(),
    ],
)
def test_a_whole_sitemap_counts_as_read(body: bytes) -> None:
    kind = Response if body[:2] == b"\x1f\x8b" else XmlResponse
    request = Request(f"{SITE}/s.xml.gz", meta={"bloom_version": "1"})
    list(make()._parse_sitemap(kind(request.url, body=body, request=request)))


# -- which dates are versions --

TODAY = date(2026, 3, 10)


@pytest.mark.parametrize(
    ("lastmod", "expected"),
    [
        ("2026-03-10T08:00:00Z", True),
        ("2026-03-10", False),
        # UTC-12 is the last to end a day, at noon of the next one in UTC.
        ("2026-03-09", False),
        ("2026-03-08", True),
        ("2026-03-11", False),
        ("2026-03", False),
        ("yesterday", False),
    ],
)
def test_a_date_may_hide_changes_of_the_same_day(lastmod: str, expected: bool) -> None:
    assert is_final(lastmod, TODAY) is expected
    assert bool(sitemap_version(lastmod, "default:0", TODAY)) is expected


def test_a_sitemap_is_read_if_it_is_not_known_what_is_due() -> None:
    assert not sitemap_version("2026-03-01", None, TODAY)
    first, second = (sitemap_version("2026-03-01", f"default:{n}", TODAY) for n in (0, 1))
    assert first != second


@given(st.text(max_size=300), st.text(max_size=300))
def test_a_long_text_is_a_version_too(first: str, other: str) -> None:
    assert (short_version(first) == short_version(other)) == (first == other)
    assert len(short_version(first).encode("utf-8", "surrogatepass")) <= MAX_VERSION
