"""``scrapy bloom`` in a project and outside: usage, settings, windows, errors; and ``acl``."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from scrapy import Request
from support.cli import KEY, SECRET, URLS, Call, Own, Shop, fingerprints, in_shell
from support.crawling import run
from support.paths import ROOT
from support.rights import PASSWORD, USER, denials
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli.acl import PASSWORD as PLACEHOLDER
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


# -- acl --


#: A subcommand, and what it needs.
NEEDS = [
    ("info --measure 100", "read"),
    (f"check {URLS[0]}", "read"),
    ("metrics --count-failed", "read"),
    ("pending", "read"),
    ("failed", "read"),
    ("gone", "read"),
    ("gone --forget", "crawl"),
    ("recrawl https://example.com/new --callback parse_item", "crawl"),
    ("list", "list"),
    ("pending --release --owner w1 --yes", "crawl"),
    ("rotate --yes", "crawl"),
    ("export file", "crawl,export"),
    ("clear --yes", "crawl"),
    ("delete --yes", "crawl,delete"),
    ("import file", "crawl,import"),
]


@pytest.fixture
def user(client: Redis) -> Iterator[None]:
    """The user is removed in the end."""
    yield
    client.acl_deluser(USER)


def grant(shop: Call, client: Redis, *options: str) -> None:
    """Run what the command prints, with a password."""
    line = shop("acl", "--user", USER, *options, "--json").json["setuser"]
    client.execute_command(*line.replace(PLACEHOLDER, PASSWORD).split())
    denials(client)


@pytest.mark.each_server(others="slow")
@pytest.mark.usefixtures("user")
def test_each_subcommand_works_with_the_rights_that_are_printed_for_it(
    server: Server, client: Redis, shop: Call
) -> None:
    url = f"unix://{USER}:{PASSWORD}@{server.socket}"
    BloomFilter(client, KEY, window="2 days", period="1 day").add_many(fingerprints(URLS))
    grant(shop, client, "--for", "read")
    done = shop("clear", "--yes", BLOOM_REDIS_URL=url)
    done.refused(f"the user {USER!r} may not run ", "scrapy bloom acl prints the rules")
    assert PASSWORD not in done.err
    for arguments, uses in NEEDS:
        grant(shop, client, "--for", uses)
        done = shop(*arguments.split(), BLOOM_REDIS_URL=url)
        assert (done.code, denials(client)) == (0, []), arguments
        assert PASSWORD not in done.out + done.err


@pytest.mark.usefixtures("user")
def test_a_migration_reads_the_set(server: Server, client: Redis, shop: Call, move: Call) -> None:
    client.sadd("shop:dupefilter", *[fingerprint.hex() for fingerprint in fingerprints(URLS)])
    grant(shop, client, "--from-set")
    url = f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}"
    done = move("--from-set", BLOOM_REDIS_URL=url, REDIS_URL=url)
    assert done.code == 0, done.err
    assert denials(client) == []


def test_the_page_has_what_the_command_prints_without_a_server(call: Call) -> None:
    page = (ROOT / "docs" / "acl.md").read_text()
    examples = re.findall(r"```console\n\$ scrapy bloom (acl.*)\n((?s:.*?))```", page)
    assert len(examples) > 1
    for arguments, text in examples:
        assert call(*arguments.split()).out == text
        assert "cluster" not in text
    assert "+cluster|slots" in call("acl", "--key", "k", "--cluster").out
    assert "+client|setinfo" in call("acl", "--key", "k", "--setinfo").out


def test_a_file_of_users_can_have_the_line(any_binary: str, call: Call, tmp_path: Path) -> None:
    line = call("acl", "--key", "two words", "--user", USER, "--json").json["line"]
    (tmp_path / "users.acl").write_text(f"{line.replace(PLACEHOLDER, PASSWORD)}\n")
    with (
        Server(any_binary, "--aclfile", str(tmp_path / "users.acl")) as server,
        server.client(username=USER, password=PASSWORD) as client,
    ):
        BloomFilter(client, "two words").open()


def test_a_project_with_a_ledger_gets_its_rights(shop: Call) -> None:
    for ledger in ({"BLOOM_LEDGER": True}, {}):
        document = shop("acl", "--json", **ledger).json
        assert ("+rpush" in document["commands"]) is bool(ledger)
        document = shop("acl", "--for", "read", "--json", **ledger).json
        assert "+rpush" not in document["commands"]
