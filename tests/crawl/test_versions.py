"""``meta["bloom_version"]``: real crawls of pages that change, and of pages that fail."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.dupefilters import URL, Make
from support.odd_site import Lab, LabOf, Reply, moved, page

from scrapy_bloom import BloomFilter
from scrapy_bloom.fingerprinter import versioned

SPIDER = """
class VersionSpider(OddSpider):
    custom_settings = {"RETRY_TIMES": 1, "CONCURRENT_REQUESTS": 2}

    def parse(self, response):
        for number, link in enumerate(response.css("a")):
            meta = {f"bloom_{name}": link.attrib[name] for name in ("version", "key", "window")
                    if name in link.attrib}
            yield response.follow(link, meta=meta, priority=-number)
"""


def listing(versions: Mapping[str, str], *links: str) -> Reply:
    """Return a page that links others with a version each, and then some without."""
    listed = (f'<a href="{path}" version="{version}">' for path, version in versions.items())
    return Reply(links, text="".join(listed))


def recorded(lab: Lab, path: str, version: str = "") -> bool:
    """Whether a version is recorded; without one, whether the page is."""
    item = fingerprint(Request(lab.site.url + path))
    return (versioned(item, version.encode()) if version else item) in BloomFilter(
        lab.client, "odd:bloom"
    )


# -- what is fetched --


def fetched(lab: Lab, versions: Mapping[str, str], *links: str) -> Counter[str]:
    """Return what a crawl fetches beyond the start page, which lists versions."""
    lab.site.pages = {**lab.site.pages, "/": listing(versions, *links)}
    done = lab.crawl(SPIDER)
    assert "] ERROR: " not in done.log
    return done.hits - Counter(["/"])


def test_a_redirect_keeps_the_version(lab_of: LabOf) -> None:
    """Else the target of a page that has changed would be a duplicate."""
    lab = lab_of({"/a": moved("/b"), "/b": page()})
    for version in ("1", "2"):
        assert fetched(lab, {"/a": version}) == {"/a": 1, "/b": 1}
        assert fetched(lab, {"/a": version, "/b": version}, "/a", "/b") == {}
    assert all(recorded(lab, path, version) for path in ("/a", "/b") for version in ("1", "2", ""))


# -- a dupefilter alone --


def request(version: object = None, url: str = URL, **meta: Any) -> Request:
    return Request(url, meta=meta if version is None else {"bloom_version": version, **meta})


def test_a_version_is_new_once_and_the_page_without_one_is_seen(make: Make) -> None:
    """Under "crawled", the simulator compares each run with a model."""
    for links, new in (
        ("a1 b1 c", "a1 b1 c"),
        ("a1 b2 a b c", "b2"),
        ("a2 b1", "a2"),  # version 1 is remembered
        ("a b c", ""),
        ("c1", "c1"),  # it was seen without a version
    ):
        worker = make()
        found = [
            link
            for link in links.split()
            if not worker.request_seen(request(link[1:] or None, f"{URL}/{link[0]}"))
        ]
        assert found == new.split()


def test_a_version_that_is_none_is_warned_about_once_and_ignored(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = make()
    for number, version in enumerate(["", "x" * 201, b"1", 7, ["1"]]):
        url = f"{URL}&d={number}"
        assert not dupefilter.request_seen(request(version, url))
        assert dupefilter.request_seen(Request(url)), "as without a version"
        assert dupefilter.request_seen(request(version, url))
    lines = [line for line in caplog.messages if "meta['bloom_version'] is " in line]
    assert len(lines) == 1
    assert lines[0].endswith("[bloom-bad-version]")
    assert "is empty in" in lines[0]


def test_start_requests_ignore_versions_unless_they_are_remembered(make: Make) -> None:
    for _ in range(2):
        assert not make().request_seen(request("1", is_start_request=True))
    lasting = {"BLOOM_START_RECRAWL_AFTER": "default"}
    for version, expected in (("1", False), ("1", True), ("2", False)):
        seen = make(**lasting).request_seen(request(version, is_start_request=True))
        assert seen is expected
