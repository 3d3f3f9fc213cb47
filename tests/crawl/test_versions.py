"""Pages that are crawled again when they have changed, by ``meta["bloom_key"]``."""

from collections import Counter
from collections.abc import Mapping

from support.odd_site import ERROR, Lab, LabOf, Reply, page

SPIDER = """
class VersionSpider(OddSpider):
    custom_settings = {"RETRY_ENABLED": False, "BLOOM_RETRY_AFTER": "3 seconds"}

    def parse(self, response):
        for link in response.css("a[version]"):
            url = response.urljoin(link.attrib["href"])
            yield Request(url, meta={"bloom_key": f"{url} {link.attrib['version']}"})
"""


def listing(versions: Mapping[str, int]) -> Reply:
    """Return a page that links others with a version each."""
    links = (f'<a href="{path}" version="{version}">' for path, version in versions.items())
    return Reply(text="".join(links))


def fetched(lab: Lab, **versions: int) -> Counter[str]:
    """Return what a crawl fetches beyond the start page."""
    lab.site.pages["/"] = listing({f"/{name}": version for name, version in versions.items()})
    return lab.crawl(SPIDER).hits - Counter(["/"])


def test_new_and_changed_pages_are_fetched_and_no_others(lab_of: LabOf) -> None:
    lab = lab_of({"/a": page(), "/b": page(), "/c": page()})
    assert fetched(lab, a=1, b=1) == {"/a": 1, "/b": 1}
    assert fetched(lab, a=1, b=2, c=1) == {"/b": 1, "/c": 1}
    assert fetched(lab, a=2, b=2, c=1) == {"/a": 1}
    assert fetched(lab, a=1, b=2, c=1) == {}, "the old version is remembered"


def test_a_changed_page_that_fails_is_crawled_again(lab_of: LabOf) -> None:
    lab = lab_of({"/a": (page(), ERROR, page())})
    assert fetched(lab, a=1) == {"/a": 1}
    assert fetched(lab, a=2) == {"/a": 1}
    lab.wait_until_due()
    assert fetched(lab, a=2) == {"/a": 1}
    assert fetched(lab, a=2) == {}
    assert not lab.claims()
