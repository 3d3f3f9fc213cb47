"""``scrapy bloom acl``: what it prints is enough for each subcommand, and is in the docs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from support.cli import KEY, URLS, Call, fingerprints
from support.paths import ROOT
from support.rights import PASSWORD, USER, denials
from support.servers import Server

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli.acl import PASSWORD as PLACEHOLDER

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
