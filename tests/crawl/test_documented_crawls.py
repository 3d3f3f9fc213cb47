"""Pages as a reader follows them: their blocks are run, and logs are what is printed."""

import json
import re
import shlex
from collections import Counter
from pathlib import Path

from scrapy import version_info
from support.nursery import shared_nursery
from support.odd_site import LabOf, Reply, moved, page, serve
from support.pages import Block, blocks
from support.servers import Server

#: The shop that README.md crawls: so many books, of which 20 are on the first of two listings.
BOOKS = ["sharp-objects_997", *(f"book-{number}_{number}" for number in range(31))]
CATEGORY = "/catalogue/category/books/mystery_3"


def listing(books: list[str], more: str = "") -> Reply:
    links = (f'<h3><a href="../../../{book}/index.html">{book}</a></h3>' for book in books)
    return Reply(text="".join(links) + more)


SHOP = {
    f"{CATEGORY}/index.html": listing(
        BOOKS[:20], '<li class="next"><a href="page-2.html">next</a></li>'
    ),
    f"{CATEGORY}/page-2.html": listing(BOOKS[20:]),
    **{f"/catalogue/{book}/index.html": Reply(text=f"<h1>{book}</h1>") for book in BOOKS},
}


class Reader:
    """Does what a page says, in an empty directory.

    Args:
        directory: where the project is made.
        addresses: those on the page -> those that are there.
    """

    def __init__(self, directory: Path, addresses: dict[str, str]) -> None:
        self.directory, self._addresses = directory, addresses
        self.logs: list[str] = []

    def follow(self, block: Block) -> None:
        text = block.text
        for address, ours in self._addresses.items():
            text = text.replace(address, ours)
        if block.language == "python":
            self._write(text)
        elif block.language == "sh":
            self._run_beside_each_other(text.splitlines())
        else:
            for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE):
                if part:
                    command, *lines = part.splitlines()
                    self.run(command.removeprefix("$ "))
                    assert not lines or logged(lines, self.logs[-1])

    def _write(self, text: str) -> None:
        """Write the file that the first line names, or append to it, or else to the settings."""
        first, _, rest = text.partition("\n")
        if first.startswith("# ") and "append to" not in first:
            (self.directory / first.removeprefix("# ")).write_text(rest)
        else:
            with (self.directory / "bookshop/settings.py").open("a") as settings:
                settings.write(text)

    def run(self, line: str) -> None:
        """Run a command that belongs to the project."""
        words = self._words(line)
        if words[0] == "cd":
            self.directory /= words[1]
        elif words[0] == "scrapy":
            code, out, errors = shared_nursery().run(words[1:], self.directory)
            assert code == 0, out + errors
            if words[1] == "crawl":
                self.logs.append(errors)

    def _run_beside_each_other(self, lines: list[str]) -> None:
        commands = [self._words(line.removesuffix("&"))[1:] for line in lines]
        log, nursery = self.directory / "log", shared_nursery()
        pids = [nursery.start(command, log, self.directory) for command in commands]
        assert [nursery.wait(pid) for pid in pids] == [0] * len(pids), log.read_text()

    def _words(self, line: str) -> list[str]:
        words = shlex.split(line, comments=True)
        return [*words, "-s", "DOWNLOAD_DELAY=0"] if words[:2] == ["scrapy", "crawl"] else words

    def titles(self) -> Counter[str]:
        """Count the items in all files."""
        files = self.directory.glob("items/*")
        lines = [line for path in files for line in path.read_text().splitlines()]
        return Counter(json.loads(line)["title"] for line in lines)


def logged(lines: list[str], log: str) -> bool:
    """Whether each line was logged, in this order. ``...`` is any text."""
    pattern = r"(?:\n.*)+".join(
        ".*".join(re.escape(part.strip()) for part in line.split("...")) for line in lines
    )
    return bool(re.search(pattern, log))


def test_the_readme_is_what_happens(own_server: Server, tmp_path: Path) -> None:
    """Two runs write each book once; the next one fetches what was asked for again.

    Then two workers on another server share the books.
    """
    with serve(SHOP) as site:
        addresses = {
            "https://books.toscrape.com": site.url,
            "redis://redis.example:6379": own_server.url,
        }
        reader, expected = Reader(tmp_path, addresses), Counter(BOOKS)
        for block in blocks("README.md", "console", "python", "sh"):
            if block.language == "sh":
                reader.run("scrapy crawl books")
                expected += Counter(["sharp-objects_997", *BOOKS])
            reader.follow(block)
            if block.mark == "log" or block.language == "sh":
                assert reader.titles() == expected
    assert len(reader.logs) == 3


#: Follows all links, with the middleware of docs/how-to/logins.md.
MEMBER = """
class MemberSpider(OddSpider):
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Login: 650}}
"""
FORM = '<form method="post" action="/session"><input name="user"></form>'


def test_what_a_killed_run_left_is_crawled_with_a_login(lab_of: LabOf) -> None:
    """Each run logs in once. If a login doesn't help, it isn't tried again, and pages fail."""
    code = next(one.text for one in blocks("docs/how-to/logins.md", "python")) + MEMBER
    pages = [f"/{number}" for number in range(20)]
    member = Reply(needs="member=1")
    lab = lab_of({"/": page(*pages), **dict.fromkeys(pages, member), "/login": Reply(text=FORM)})
    code = code.replace("https://shop.example", lab.site.url)
    if version_info < (2, 14):
        defer = "maybe_deferred_to_future"
        code = f"from scrapy.utils.defer import {defer}\n" + code.replace(
            "self.crawler.engine.download_async(request)",
            f"{defer}(self.crawler.engine.download(request))",
        )
    lab.site.pages["/session"] = Reply(cookie="member=1")
    lab.kill_midway(15, code)
    lab.site.pages["/"] = page()
    done = lab.crawl(code)
    assert done.hits["/login"] == done.hits["/session"] == 1
    assert done.recorded == {*pages}
    assert not done.claims
    lab.site.pages |= {"/": page("/x", "/y"), "/x": moved("/login"), "/y": moved("/login")}
    done = lab.crawl(code)
    assert done.hits["/session"] == 1
    assert {path for path, claim in done.claims.items() if claim.attempt} == {"/x", "/y"}
