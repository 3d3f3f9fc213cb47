"""Pages as a reader follows them: their blocks are run, and logs are what is printed."""

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from scrapy import version_info
from support.nursery import shared_nursery
from support.odd_site import LabOf, Reply, moved, page
from support.pages import Block, blocks
from support.servers import Server
from support.serving import serving

TUTORIAL = "docs/tutorial/first-crawl.md"
SETTINGS = "news/settings.py"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Reader:
    """Does what a page says, in an empty directory.

    Args:
        directory: where the project is made.
        addresses: those on the page -> those that are there.
    """

    def __init__(self, directory: Path, addresses: dict[str, str]) -> None:
        self.directory, self.addresses = directory, addresses
        self.log = ""

    def follow(self, block: Block) -> None:
        text = block.text
        for address, ours in self.addresses.items():
            text = text.replace(address, ours)
        if block.language == "python":
            self._write(text)
        elif block.language == "sh":
            self._run_beside_each_other(text.splitlines())
        elif block.language == "text":
            assert logged(text.splitlines(), self.log), (text, self.log)
        else:
            for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE):
                command, *lines = part.splitlines() or [""]
                self._run(command.removeprefix("$ "))
                assert not lines or logged(lines, self.log), (part, self.log)

    def _write(self, text: str) -> None:
        """Write the file that the first line names, or append to the settings."""
        first, _, rest = text.partition("\n")
        if first.endswith("settings.py"):
            with (self.directory / SETTINGS).open("a") as settings:
                settings.write(rest)
        else:
            (self.directory / first.removeprefix("# ")).write_text(rest)

    def _run(self, line: str) -> None:
        """Run a command that belongs to the project; others install, or serve the magazine."""
        words = shlex.split(line, comments=True)
        if words[:1] == ["scrapy"]:
            words += ["-s", "DOWNLOAD_DELAY=0"] if words[1] == "crawl" else []
            code, out, errors = shared_nursery().run(words[1:], self.directory)
            assert code == 0, out + errors
            self.log = out + errors
        elif words[:2] == ["python3", "magazine.py"]:
            subprocess.run([sys.executable, *words[1:]], cwd=self.directory, check=True)

    def _run_beside_each_other(self, lines: list[str]) -> None:
        commands = [shlex.split(line.removesuffix("&"))[1:] for line in lines]
        commands = [[*command, "-s", "DOWNLOAD_DELAY=0"] for command in commands]
        log, nursery = self.directory / "log", shared_nursery()
        pids = [nursery.start(command, log, self.directory) for command in commands]
        assert [nursery.wait(pid) for pid in pids] == [0] * len(pids), log.read_text()

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


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Whoever reads the tutorial, beside whom the magazine is served."""
    pages = partial(_Quiet, directory=str(tmp_path / "magazine"))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), pages)) as server:
        yield Reader(tmp_path, {"127.0.0.1:8000": f"127.0.0.1:{server.server_port}"})


def make_project(reader: Reader) -> None:
    """Follow the tutorial until the settings."""
    for block in blocks(TUTORIAL, "console", "python"):
        if "settings.py" in block.text:
            break
        reader.follow(block)


def test_the_tutorial_is_what_happens(reader: Reader) -> None:
    """A run with everything, one with nothing, and one with what was published since."""
    for block in blocks(TUTORIAL, "console", "python", "text"):
        reader.follow(block)
    written = [(reader.directory / f"{name}.jsonl") for name in ("first", "second", "third")]
    assert [len(path.read_text().splitlines()) for path in written] == [110, 0, 3]


def test_the_readme_is_what_happens(reader: Reader) -> None:
    make_project(reader)
    for block in blocks("README.md", "console", "python"):
        reader.follow(block)
    assert "110 URLs are remembered" in reader.log


def test_several_workers_write_each_article_once(reader: Reader, own_server: Server) -> None:
    """With the settings of README.md and of their tutorial."""
    reader.addresses["redis://redis.example:6379"] = own_server.url
    make_project(reader)
    tutorial = "docs/tutorial/two-workers-one-killed.md"
    for name in ("README.md", tutorial, "docs/how-to/several-workers.md"):
        for block in blocks(name, "python", "sh"):
            reader.follow(block)
    titles = reader.titles()
    assert len(titles) == 110
    assert set(titles.values()) == {1}


#: Follows all links, with the middleware of docs/how-to/logins.md.
MEMBER = """
class MemberSpider(OddSpider):
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Login: 650}}
"""
FORM = '<form method="post" action="/session"><input name="user"></form>'


def test_what_a_killed_run_left_is_crawled_with_a_login(lab_of: LabOf) -> None:
    """Each run logs in once. If that doesn't help, pages fail: at once if the login has failed."""
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
    assert done.hits["/session"] == 3
    assert {path for path, claim in done.claims.items() if claim.attempt} == {"/x", "/y"}
    lab.site.pages |= {"/": page("/z"), "/z": moved("/login"), "/session": moved("/login")}
    done = lab.crawl(code)
    assert done.hits["/session"] == 1
    assert {path for path, claim in done.claims.items() if claim.attempt} == {"/x", "/y", "/z"}
