"""The permissions that docs/how-to/redis-server.md gives the crawl's user are enough, and used."""

import re
import sys
from pathlib import Path
from typing import Any

from support.lab_commands import bloom
from support.odd_site import Lab, serve, tree
from support.pages import read
from support.servers import Server

from scrapy_bloom.bloom.protocol import scripts
from scrapy_bloom.cli import doctor

KEY = "shop:bloom"
(LINE,) = re.findall(r"^ACL SETUSER .*$", read("docs/how-to/redis-server.md"), re.MULTILINE)
COMMANDS = {word[1:] for word in LINE.split() if word.startswith("+")}


def test_a_crawl_that_is_killed_and_all_commands_work(own_server: Server, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("https://example.com/about")
    settings: dict[str, Any] = {"BLOOM_KEY": KEY, "BLOOM_RECRAWL_AFTER": "2 months"}
    with serve(tree(40)) as site, Lab(site, own_server.url, tmp_path) as lab:
        lab.client.execute_command(*LINE.split())
        settings["BLOOM_REDIS_URL"] = own_server.url.replace("//", "//crawler:PASSWORD@")
        lab.kill_midway(20, **settings)
        assert "[bloom-" not in lab.crawl(**settings).log
        for arguments in (
            ("info",),
            ("pending",),
            ("check", f"{site.url}/1"),
            ("recrawl", f"{site.url}/1"),
            ("doctor",),
            ("report", str(tmp_path / "page.html")),
            ("migrate", "--from-urls", str(tmp_path / "urls.txt")),
            ("clear", "--yes"),
        ):
            done = bloom(lab, *arguments, **settings)
            assert done.code in (0, 1), done.err
        # redis-py names itself, and continues if it may not.
        log = lab.client.acl_log()
        assert not [entry for entry in log if "setinfo" not in str(entry["object"])]


def test_each_command_is_one_that_a_script_or_the_client_uses() -> None:
    folder = Path(str(sys.modules[scripts.__name__].__file__)).parent
    own = (folder / "claims.py", folder / "workers.py")
    text = "".join(path.read_text() for path in (*folder.glob("lua/*.lua"), *own))
    called = {name.lower() for name in re.findall(r"""['"]([A-Z_]{3,})['"]""", text)}
    assert COMMANDS - called == {"eval", "evalsha"}
    assert {*doctor.COMMANDS.split(), "eval", "evalsha"} == COMMANDS
    assert {"llen", "lpop", "rpush"} <= COMMANDS & called, "only workers that share work use them"
