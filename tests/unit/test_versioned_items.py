"""Versions of URLs: items that name their URL; what a process knows; versions of sitemaps."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.still_clock import Clock

from scrapy_bloom.crawl.local_state import ANY_AGE, FRESH_SECONDS, LocalState
from scrapy_bloom.fingerprinter import (
    HASH_BYTES,
    MAX_FINGERPRINT,
    MAX_VERSION,
    VERSIONED,
    base_of,
    bounded,
    version_of,
    versioned,
)
from scrapy_bloom.sitemaps import is_final, short_version, sitemap_version

fingerprints = st.one_of(
    st.binary(max_size=2 * MAX_FINGERPRINT), st.binary(max_size=30).map(VERSIONED.__add__)
).map(bounded)
versions = st.text(min_size=1, max_size=20).map(lambda text: text.encode("utf-8", "replace"))

# -- items --


@given(st.lists(st.tuples(fingerprints, st.none() | versions), max_size=20))
def test_items_tell_urls_and_versions_apart_and_name_their_url(
    requests: Sequence[tuple[bytes, bytes | None]],
) -> None:
    """Exact: as many items as there are different pairs, and each leads back to its URL."""
    items = dict[bytes, tuple[bytes, bytes | None]]()
    for fingerprint, version in requests:
        item = fingerprint if version is None else versioned(fingerprint, version)
        assert base_of(item) == (None if version is None else fingerprint)
        assert len(item) <= MAX_FINGERPRINT + len(VERSIONED) + HASH_BYTES
        assert items.setdefault(item, (fingerprint, version)) == (fingerprint, version)
    assert len(items) == len(set(requests))


@pytest.mark.parametrize(
    ("meta", "version"),
    [
        ({}, b""),
        ({"bloom_version": "2026-01-02"}, b"2026-01-02"),
        ({"bloom_version": "\ud800"}, b"\xed\xa0\x80"),
        ({"bloom_version": "é" * (MAX_VERSION // 2)}, "é".encode() * (MAX_VERSION // 2)),
        ({"bloom_version": "é" * (MAX_VERSION // 2) + "a"}, b""),
        *(({"bloom_version": value}, b"") for value in ("", None, 3, b"1", ["1"])),
    ],
)
def test_versions_are_short_texts(meta: dict[str, Any], version: bytes) -> None:
    assert version_of(meta) == version


# -- what a process knows --

URL, PAGE = b"u" * 20, ("default", versioned(b"u" * 20, b"1"))
LINK = ("default", URL)


def test_a_link_is_seen_while_a_version_is_claimed_or_was_just_crawled() -> None:
    clock = Clock()
    local = LocalState(1_000, 60, clock)
    local.versions.claimed(PAGE)
    clock.now += 1_000_000
    assert local.get(LINK, 0)
    assert not local.get(PAGE, 0)
    assert not local.get(("other", URL), 0)
    local.discard(PAGE)
    assert not local.get(LINK, 0), "it has failed"
    local.versions.claimed(PAGE)
    local.versions.crawled(PAGE)
    clock.now += FRESH_SECONDS
    assert local.get(LINK, 0), "the job may not be written yet"
    clock.now += 0.001
    assert not local.get(LINK, 0), "the filter knows when it is forgotten"
    assert local.get(LINK, 0, ANY_AGE), "without a server"


# -- sitemaps --

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
