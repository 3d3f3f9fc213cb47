"""``scrapy bloom``: what it prints, changes and returns, in a project and outside."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from scrapy import Request
from support.cli import KEY, SECRET, URLS, Call, Own, Shop, fingerprints, in_shell
from support.crawling import run
from support.servers import Server, free_port

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli.command import SUBCOMMANDS


class Broken:
    def fingerprint(self, request: Request) -> bytes:
        raise LookupError("a bug")


def test_help_has_the_subcommands_in_groups(call: Call) -> None:
    lines = call("-h").out.splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        if match := re.match(r"    (\w+)  +\S", line):
            found[match[1]] = []
        elif found and (match := re.match(r"      (\w+)  +\S", line)):
            found[next(reversed(found))].append(match[1])
    assert [*found] == ["look", "change", "move"]
    assert sorted(name for names in found.values() for name in names) == sorted(SUBCOMMANDS)
    assert {"plan", "info", "check", "pending", "acl"} <= {*found["look"]}
    assert {"rotate", "clear", "delete"} <= {*found["change"]}
    assert found["move"] == ["migrate", "export", "import"]


def test_help_has_no_headings_but_its_own(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy makes a heading of each line that ends with a colon."""
    monkeypatch.setenv("COLUMNS", "79")
    for name in (None, *SUBCOMMANDS):
        lines = call(*([] if name is None else [name]), "--help").out.splitlines()
        found = {
            above for above, line in pairwise(lines) if line and not line.strip("=-") and above
        }
        known = {"Usage", "Options", "Global Options", "Positional Arguments", "Subcommands"}
        assert found <= known


def test_scrapys_options_stand_after_the_subcommand(
    call: Call, client: Redis, server: Server
) -> None:
    BloomFilter(client, "k").open()
    done = call("info", "-s", f"BLOOM_REDIS_URL={server.url}", "--json", "--set", "BLOOM_KEY=k")
    assert done.code == 0, done.err
    assert done.json["filters"][0]["key"] == "k"


@pytest.mark.parametrize(
    "arguments", [["info", "--nonsense"], ["nonsense"], ["plan", "surplus"], ["info", "-s", "x"]]
)
def test_wrong_usage(call: Call, arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert "error: " in done.err


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


def test_a_key_is_needed_outside_a_project(call: Call) -> None:
    done = call("info")
    assert done.code == 2
    assert "none: this is no Scrapy project), or give the filter's key with --key" in done.err


def test_several_spiders_are_listed(call: Call, client: Redis, server: Server) -> None:
    project = {"spiders": (Shop, Own), "BLOOM_REDIS_URL": server.url}
    done = call("info", **project)
    assert (done.code, done.out) == (2, "")
    assert "choose one with --spider (there are: own, shop)" in done.err
    assert "there are: own, shop" in call("info", "--spider", "x", **project).err
    BloomFilter(client, "special").open()
    # The spider's custom_settings count.
    assert call("info", "--spider", "own", "--json", **project).code == 0
    assert call("info", "--key", "special", **project).code == 0
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
    done = shop("info", "--window", "typo", **windows)
    assert done.code == 2
    assert "there are default, 1-day, 2-days" in done.err
    # Which windows another filter has, the project does not know.
    assert shop("info", "--key", KEY, "--window", "1-day").code == 0


def test_scrapy_redis_settings_are_the_fallback(call: Call, client: Redis, server: Server) -> None:
    BloomFilter(client, KEY).open()
    assert call("info", spiders=(Shop,), REDIS_URL=server.url).code == 0
    assert call("info", "-s", f"REDIS_URL={server.url}", "--key", KEY).code == 0


@pytest.mark.parametrize(
    "command",
    [
        *("info", "check https://example.com", "rotate -y", "clear -y", "delete -y"),
        *("failed", "gone", "pending", "pending --release --owner x -y", "settings"),
        *("settings --apply", "recrawl https://example.com --callback parse_item"),
    ],
)
def test_where_there_is_no_filter(shop: Call, client: Redis, command: str) -> None:
    done = shop(*command.split())
    assert done.code == 1
    assert "there is no" in done.out + done.err
    assert len((done.out + done.err).splitlines()) == 1
    assert client.keys() == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"BLOOM_CAPACTIY": 5}, "did you mean BLOOM_CAPACITY?"),
        ({"BLOOM_REDIS_URL": f"redis://:{SECRET}@[host"}, "is not an address"),
        ({"BLOOM_KEY": "{x}"}, "must be a non-empty string"),
        ({"REQUEST_FINGERPRINTER_CLASS": Broken}, "LookupError: a bug (-L DEBUG shows where)"),
    ],
)
def test_bad_settings(shop: Call, client: Redis, settings: dict[str, Any], message: str) -> None:
    BloomFilter(client, KEY).open()
    for extra in ([], ["--json"]):
        done = shop("check", "https://example.com", *extra, **settings)
        assert done.code == 2
        assert message in done.err
        assert len(done.err.splitlines()) == 1
        assert SECRET not in done.out + done.err


def test_no_server(call: Call) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:{free_port()}"
    for command in (["info", "--json"], ["check", URLS[0]], ["clear", "-y"], ["delete", "-y"]):
        done = call(*command, "--key", "k", "-s", f"BLOOM_REDIS_URL={url}")
        assert (done.code, done.out) == (2, "")
        assert "start a server there" in done.err
        assert len(done.err.splitlines()) == 1
        assert SECRET not in done.err


def test_an_interruption_is_no_answer(shop: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BloomFilter, "look", interrupt)
    done = shop("info")
    assert (done.code, done.err) == (2, "scrapy bloom: interrupted\n")


def test_outside_a_project(client: Redis, server: Server, tmp_path: Path) -> None:
    """Standard input is read; a reader that is gone before anything is printed is no failure."""
    BloomFilter(client, KEY, window="2 months").extend(fingerprints(URLS))
    where = f"--key {KEY} -s BLOOM_REDIS_URL={server.url}"
    lines = "\\n".join([*URLS, "https://new.example"])
    done = in_shell(f"echo -e '{lines}' | BLOOM check - {where}", tmp_path)
    assert (done.code, done.err) == (1, "")
    assert "20 of 21 are seen" in done.out
    done = in_shell(f"echo y | BLOOM clear {where}", tmp_path)
    assert (done.code, done.out) == (2, ""), "there is no terminal to ask at"
    done = in_shell("BLOOM plan --json | true; echo ${PIPESTATUS[0]}", tmp_path)
    assert (done.out, done.err) == ("141\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_that_knows_ascii_only_gets_escapes(
    client: Redis, server: Server, tmp_path: Path
) -> None:
    BloomFilter(client, "gr\u00fcn").open()
    where = f"--key gr\u00fcn -s BLOOM_REDIS_URL={server.url}"
    done = in_shell(f"BLOOM check http://\u4f8b/ {where}", tmp_path, PYTHONIOENCODING="ascii")
    assert "Error" not in done.err
    assert "\\x" in done.out or "\\u" in done.out
