"""The permissions that docs/how-to/redis-server.md gives the crawl's user are enough, and used."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from example_site.serve import SiteServer
from support.crawling import options, run_scrapy
from support.nursery import shared_nursery
from support.pages import read
from support.polling import until

from scrapy_bloom.bloom.protocol import scripts

KEY = "shop:bloom"
(LINE,) = re.findall(r"^ACL SETUSER .*$", read("docs/how-to/redis-server.md"), re.MULTILINE)
COMMANDS = {word[1:] for word in LINE.split() if word.startswith("+")}


@pytest.fixture
def user_url(redis_url: str) -> Iterator[str]:
    """The address of a server for that user; nothing that it was refused is left in the log."""
    with redis.Redis.from_url(redis_url) as admin:
        admin.execute_command(*LINE.split())
        address = urlsplit(redis_url)
        yield f"redis://crawler:PASSWORD@{address.hostname}:{address.port}"
        # redis-py names itself, and continues if it may not.
        refused = [entry for entry in admin.acl_log() if "setinfo" not in str(entry["object"])]
        assert not refused


def test_a_crawl_that_is_killed_and_all_commands_work(
    user_url: str, web: SiteServer, tmp_path: Path
) -> None:
    settings = {"BLOOM_REDIS_URL": user_url, "BLOOM_KEY": KEY, "BLOOM_RECRAWL_AFTER": "2 months"}
    command = ["crawl", "links", *options(web, settings)]
    pid = shared_nursery().start(command, tmp_path / "log")
    until(lambda: web.hits().total() > 40, "it has begun")
    shared_nursery().kill(pid)
    done = run_scrapy(*command)
    assert done.returncode == 0
    assert "[bloom-" not in done.stderr
    own = [text for name, value in settings.items() for text in ("-s", f"{name}={value}")]
    urls = tmp_path / "urls.txt"
    urls.write_text(f"{web.url}/about")
    for arguments in (
        ("info",),
        ("pending",),
        ("check", f"{web.url}/about"),
        ("recrawl", f"{web.url}/about"),
        ("doctor",),
        ("report", str(tmp_path / "page.html")),
        ("migrate", "--from-urls", str(urls)),
        ("clear", "--yes"),
    ):
        done = run_scrapy("bloom", *arguments, "--spider", "links", *own)
        assert done.returncode in (0, 1), done.stderr


def test_each_command_is_one_that_a_script_or_the_client_uses() -> None:
    folder = Path(str(sys.modules[scripts.__name__].__file__)).parent
    text = "".join(p.read_text() for p in (*folder.glob("lua/*.lua"), folder / "claims.py"))
    called = {name.lower() for name in re.findall(r"""['"]([A-Z_]{3,})['"]""", text)}
    assert COMMANDS - called == {"eval", "evalsha"}
    assert {"llen", "lpop", "rpush"} <= COMMANDS & called, "only workers that share work use them"
