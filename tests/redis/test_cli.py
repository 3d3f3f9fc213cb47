"""``scrapy bloom``: what it prints, changes and returns, in a project and outside."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from scrapy import Request
from support.cli import KEY, SECRET, URLS, Call, Own, Shop, fingerprints, in_shell
from support.crawling import run
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli.command import SUBCOMMANDS


class Broken:
    def fingerprint(self, request: Request) -> bytes:
        raise LookupError("a bug")


def test_help_has_the_subcommands_in_groups(call: Call) -> None:
    _, *parts = re.split(r"^    (\w+)  +\S", call("-h").out, flags=re.MULTILINE)
    names = [re.findall(r"^      (\w+)  +\S", text, re.MULTILINE) for text in parts[1::2]]
    assert parts[::2] == ["look", "change", "move"]
    assert sorted(chain(*names)) == sorted(SUBCOMMANDS)
    assert names[2] == ["migrate", "export", "import"]


def test_options_and_settings_name_the_server(call: Call, client: Redis, server: Server) -> None:
    """Scrapy's options stand after the subcommand; settings of scrapy-redis are the fallback."""
    BloomFilter(client, KEY).open()
    url = f"BLOOM_REDIS_URL={server.url}"
    done = call("info", "-s", url, "--json", "--set", f"BLOOM_KEY={KEY}")
    assert done.code == 0, done.err
    assert done.json["filters"][0]["key"] == KEY
    assert call("info", spiders=(Shop,), REDIS_URL=server.url).code == 0
    text = "none: this is no Scrapy project), or give the filter's key with --key"
    call("info", SPIDER_MODULES=[]).refused(text)
    assert "(there are: none yet)" in call("info", SPIDER_MODULES=["json"]).err


@pytest.mark.parametrize("arguments", [["nonsense"], ["plan", "surplus"], ["info", "-s", "x"]])
def test_wrong_usage(call: Call, arguments: list[str]) -> None:
    call(*arguments).refused("error: ")


def test_logs_are_quiet_unless_asked_for(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).open()
    addons = {"ADDONS": {"scrapy_bloom.Addon": 500}, "LOG_STDOUT": True}
    assert shop("info", **addons).err == ""
    done = shop("info", "-L", "DEBUG", **addons)
    assert "Enabled addons" in done.err
    assert KEY in done.out


def test_the_command_is_imported_without_rich() -> None:
    code = "import sys; sys.modules['rich'] = None; import scrapy_bloom.cli.command"
    done = run("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_several_spiders_are_listed(call: Call, client: Redis, server: Server) -> None:
    project = {"spiders": (Shop, Own), "BLOOM_REDIS_URL": server.url}
    call("info", **project).refused("choose one with --spider (there are: own, shop)")
    assert "there are: own, shop" in call("info", "--spider", "x", **project).err
    BloomFilter(client, "special").open()
    # The spider's custom_settings count.
    assert call("info", "--spider", "own", **project).code == 0
    assert call("info", **project, BLOOM_KEY="special").code == 0


def test_the_windows_of_rules(shop: Call, client: Redis) -> None:
    BloomFilter(client, KEY).open()
    BloomFilter(client, f"{KEY}:1-day", window="1 day").extend(fingerprints(URLS[:3]))
    windows = {"BLOOM_RECRAWL_RULES": [("/n", "1 day"), ("/o", "2 days")]}
    filters = shop("info", "--json", **windows).json["filters"]
    assert [(f["name"], f["exists"], f.get("count")) for f in filters] == [
        ("default", True, 0),
        ("1-day", True, 3),
        ("2-days", False, None),
    ]
    (document,) = shop("info", "--window", "1-day", "--json", **windows).json["filters"]
    assert (document["key"], document["window"]) == (f"{KEY}:1-day", "1 day")
    assert shop("info", "--window", "2-days", **windows).code == 1
    typo = shop("info", "--window", "typo", **windows)
    typo.refused("there are default, 1-day, 2-days")
    # Which windows another filter has, the project does not know.
    assert shop("info", "--key", KEY, "--window", "1-day").code == 0


def test_where_there_is_no_filter(shop: Call, client: Redis) -> None:
    for command in (
        *("info", "check https://example.com", "rotate -y", "clear -y", "delete -y"),
        *("failed", "gone", "pending", "pending --release --owner x -y", "settings"),
        *("settings --apply", "recrawl https://example.com --callback parse_item"),
    ):
        done = shop(*command.split())
        assert done.code == 1, command
        assert "there is no" in done.out + done.err
        assert len((done.out + done.err).splitlines()) == 1
    assert client.keys() == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"BLOOM_CAPACTIY": 5}, "did you mean BLOOM_CAPACITY?"),
        ({"BLOOM_REDIS_URL": f"redis://:{SECRET}@[host"}, "is not an address"),
        ({"BLOOM_REDIS_URL": f"redis://:{SECRET}@127.0.0.1:1"}, "start a server there"),
        ({"REQUEST_FINGERPRINTER_CLASS": Broken}, "LookupError: a bug (-L DEBUG shows where)"),
    ],
)
def test_what_cannot_be_used(
    shop: Call, client: Redis, settings: dict[str, Any], message: str
) -> None:
    BloomFilter(client, KEY).open()
    done = shop("check", "https://example.com", **settings)
    done.refused(message)
    assert len(done.err.splitlines()) == 1
    assert SECRET not in done.err


def test_an_interruption_is_no_answer(shop: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BloomFilter, "look", interrupt)
    done = shop("info")
    assert (done.code, done.err) == (2, "scrapy bloom: interrupted\n")


def test_readers_that_are_gone_and_terminals_that_know_ascii_only(
    client: Redis, server: Server, tmp_path: Path
) -> None:
    done = in_shell("BLOOM plan --json | true; echo ${PIPESTATUS[0]}", tmp_path)
    assert (done.out, done.err) == ("141\n", "")
    BloomFilter(client, "gr\u00fcn").open()
    where = f"--key gr\u00fcn -s BLOOM_REDIS_URL={server.url}"
    done = in_shell(f"BLOOM check http://\u4f8b/ {where}", tmp_path, PYTHONIOENCODING="ascii")
    assert "Error" not in done.err
    assert "\\x" in done.out or "\\u" in done.out
    assert list(tmp_path.iterdir()) == []
