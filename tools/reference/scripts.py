"""docs/reference/scripts.md."""

import re
from importlib import resources

from scrapy_bloom.bloom.protocol.scripts import commands_in, load
from tools.reference.markdown import bullets, document, sentence

INTRODUCTION = """\
All that is written to the server is written by these scripts, in one atomic step each. They are
sent by `EVALSHA`, and by `EVAL` where the server does not know them yet. All keys of a call are
in `KEYS`, and in one hash slot. Here are what each does, what it costs, and the commands that it
calls ([rights](../acl.md)). The contracts, with all keys, arguments and replies, stand at the heads
of the [files](../../scrapy_bloom/bloom/protocol/lua). `prelude_*` are pieces that stand before the
scripts that need them."""
_PRELUDE = "prelude_"


def heads() -> dict[str, str]:
    """Return the comments at the heads of all scripts, without the dashes, by name."""
    folder = resources.files("scrapy_bloom.bloom.protocol").joinpath("lua")
    found = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        name, _, suffix = file.name.partition(".")
        if suffix == "lua":
            found[name] = _head(file.read_text("utf-8"))
    return found


def page() -> str:
    """Return the page."""
    found = heads()
    scripts = [name for name in found if not name.startswith(_PRELUDE)]
    preludes = [name for name in found if name.startswith(_PRELUDE)]
    sections = [_section(name, found[name], _commands(name)) for name in scripts]
    pieces = [_section(name, found[name], "") for name in preludes]
    blocks = (INTRODUCTION, "## Scripts", *sections, "## Preludes", *pieces)
    return document("Lua scripts", "the scripts in scrapy_bloom/bloom/protocol/lua", *blocks)


def _head(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").removeprefix(" "))
    return "\n".join(lines).strip()


def _commands(name: str) -> str:
    return ", ".join(f"`{command}`" for command in commands_in(load(name).text).needed)


def _section(name: str, head: str, commands: str) -> str:
    first, _, contract = head.partition("\n\n")
    _, _, summary = first.partition(": ")
    cost = re.search(r"^Cost +(.*(?:\n .*)*)", contract, re.MULTILINE)
    facts = bullets(Cost=" ".join(cost[1].split()) if cost else "", Commands=commands)
    return "\n\n".join(filter(None, [f"### `{name}`", sentence(" ".join(summary.split())), facts]))
