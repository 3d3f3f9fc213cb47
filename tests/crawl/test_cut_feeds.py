"""Feeds with one name for all runs: half an item in the file spoils no other, and none is lost.

A full disk or a crash of the machine leaves half an item. Here, the test cuts the file.
"""

import csv
import gzip
import json
from io import StringIO
from pathlib import Path

import pytest
from support.odd_site import LabOf, tree
from support.polling import until

PAGES = 40
#: Pages that a crawl gets before it is killed.
MIDWAY = 12
#: Its items are so large that the file has some of them before it's closed: Python 3.14 writes
#: 128 KiB at a time.
SPIDER = """
class TextSpider(OddSpider):
    def parse(self, response):
        path = "/" + response.url.rpartition("/")[2]
        yield {"path": path, "text": TEXT * 15_000, "end": "."}
        yield from self.links(response)
"""
#: What the text repeats, and how many bytes of the last row are missing. With 5, a row of CSV ends
#: after a line break of its text.
TEXTS = {"plain": ("abc ", 9), "quotes": ('a"b, ', 9), "lines": ("a,\n", 9), "a line": ("a,\n", 5)}
#: How a row that is whole ends.
ENDS = {"csv": b",.\r\n", "jsonlines": b'"end": "."}\n'}


def rows(path: Path, kind: str) -> list[dict[str, str]]:
    """Return the rows of a file that are whole."""
    text = path.read_text()
    if kind == "csv":
        found = [*csv.DictReader(StringIO(text, newline=""))]
    else:
        found = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [one for one in found if one["end"] == "."]


@pytest.mark.parametrize("kind", ["csv", "jsonlines"])
@pytest.mark.parametrize(("text", "missing"), TEXTS.values(), ids=TEXTS)
def test_half_an_item_in_the_file_spoils_no_other_after_a_kill(
    lab_of: LabOf, text: str, missing: int, kind: str
) -> None:
    lab = lab_of(tree(PAGES))
    file, spider = lab.directory / "items", SPIDER.replace("TEXT", repr(text))
    settings = {"BLOOM_REMEMBER": "delivered", "FEEDS": json.dumps({str(file): {"format": kind}})}
    with lab.midway(MIDWAY, spider, **settings) as crawl:
        until(lambda: file.exists() and len(rows(file, kind)) > 2, "items are in the file")
        crawl.kill()
    count = len(rows(file, kind))
    data, end = file.read_bytes(), ENDS[kind]
    file.write_bytes(data[: data.rindex(end) + len(end) - missing])  # the kill may have cut it, too
    assert len(rows(file, kind)) == count - 1 > 0
    lab.site.release()
    done = lab.crawl(spider, **settings)
    found = rows(file, kind)
    assert {one["path"] for one in found} >= lab.site.pages.keys() - {"/"}
    assert [one["path"] for one in found].count("/") == 2, "the first item of each run"
    assert {one["text"] for one in found} == {text * 15_000}
    assert done.recorded == lab.site.pages.keys() - {"/"}
    assert not done.claims


def test_nothing_is_written_between_two_parts_of_a_compressed_file(lab_of: LabOf) -> None:
    lab = lab_of(tree(3))
    file, spider = lab.directory / "items", SPIDER.replace("TEXT", "'abc'")
    plugins = ["scrapy.extensions.postprocessing.GzipPlugin"]
    feed = {"format": "jsonlines", "postprocessing": plugins}
    for _ in range(2):
        lab.crawl(spider, BLOOM_REMEMBER="delivered", FEEDS=json.dumps({str(file): feed}))
    with gzip.open(file, "rt") as opened:
        paths = [json.loads(line)["path"] for line in opened]
    assert sorted(paths) == sorted([*lab.site.pages, "/"]), "each run has an item of /"
