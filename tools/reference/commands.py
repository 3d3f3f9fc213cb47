"""docs/reference/commands.md."""

import argparse
from collections.abc import Iterable, Iterator

from scrapy.settings import Settings

from scrapy_bloom.cli.command import COMMANDS, EXIT_CODES, BloomCommand
from tools.reference.markdown import block, code, document, sentence, table

INTRODUCTION = """\
With `scrapy bloom` you see what a filter remembers and which requests are pending, have pages \
crawled again, and find out what is wrong with a project or its server. In a project it uses the \
settings of the project and the spider. Outside of one, name the server and the filter:

```console
$ scrapy bloom info -s BLOOM_REDIS_URL=redis://localhost:6379 --key shop:bloom
```

Each command prints a table (drawn by [rich](https://rich.readthedocs.io) if you install \
`scrapy-bloom[cli]`), or the same rows as JSON. Times are in UTC. Long work shows its \
progress at a terminal. Scrapy's own options work, too, \
for example `-s NAME=VALUE` and `-L LEVEL`."""
#: Commands that there were before the first release, and what to use instead.
REMOVED = (
    ("`failed`", "`pending --failed`"),
    ("`list`", "`info --all`"),
    ("`metrics`", "`info --json`, and Scrapy's stats for each crawl"),
    ("`watch`", "the shell's `watch scrapy bloom info`"),
    ("`gone`", "Scrapy's stats, for example `downloader/response_status_count/404`"),
    ("`settings`", "`info` and `doctor`. A new window needs no confirmation"),
    ("`rotate`", "`clear`, or a shorter `BLOOM_ROTATE_EVERY`"),
    ("`delete`", "`clear`, or the library ([uninstall](../how-to/leave.md))"),
    ("`export`, `import`", "`save` and `load` of the library ([files](../library.md#files))"),
    ("`acl`", "the line in the docs ([permissions](../how-to/redis-server.md#permissions))"),
)
REDIS = (
    "Filters are ordinary [keys](keys.md), so that `redis-cli` shows the rest: "
    "`redis-cli --scan --pattern '{shop:bloom:*}:*'` lists those of a filter, and "
    "`redis-cli info memory` shows what the server has."
)
#: Of argparse and of Scrapy: not described here.
_OTHERS = ("-h", "--help")
_GROUP_OF_SCRAPY = "Global Options"
#: Options of all commands.
_COMMON = ("--spider", "--key", "--json")


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each subcommand."""
    command = BloomCommand()
    command.settings = Settings()
    parser = argparse.ArgumentParser(prog="scrapy bloom")
    command.add_options(parser)
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            found |= action.choices
    return found


def own_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments and options of a subcommand, without Scrapy's."""
    return [
        action
        for group in parser._action_groups  # noqa: SLF001
        if group.title != _GROUP_OF_SCRAPY
        for action in group._group_actions  # noqa: SLF001
        if not set(action.option_strings) & set(_OTHERS)
    ]


def page() -> str:
    """Return the page."""
    found = parsers()
    overview = [(f"[`{name}`](#{name})", module.HELP) for name, module in COMMANDS.items()]
    common = [one for one in own_actions(found["info"]) if {*one.option_strings} & {*_COMMON}]
    codes = [(str(number), meaning) for number, meaning in EXIT_CODES.items()]
    blocks = (
        INTRODUCTION,
        table(("command", "what it does"), overview),
        *(_section(name, parser) for name, parser in found.items()),
        "## Options of all commands",
        table(("option", "what it does"), _rows(common)),
        "## Exit codes",
        table(("code", "meaning"), codes),
        "## Commands that were removed",
        table(("command", "use instead"), REMOVED),
        REDIS,
    )
    return document("Commands", "the parsers of scrapy_bloom/cli", *blocks)


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    own = [one for one in own_actions(parser) if not {*one.option_strings} & {*_COMMON}]
    examples = COMMANDS[name].EXAMPLES.splitlines()
    lines = [line if line.startswith("#") else f"$ {line}" for line in examples]
    parts = [
        f"## `{name}`",
        sentence(COMMANDS[name].HELP),
        " ".join(str(COMMANDS[name].__doc__).partition("\n\n")[2].split()),
        block("\n".join(lines), "console"),
        table(("argument", "what it does"), _rows(own)) if own else "",
    ]
    return "\n\n".join(filter(None, parts))


def _rows(actions: Iterable[argparse.Action]) -> Iterator[tuple[str, str]]:
    for action in actions:
        names = ", ".join(action.option_strings) or str(action.metavar)
        has_value = bool(action.option_strings) and action.nargs != 0
        value = action.metavar or action.dest.upper()
        yield code(f"{names} {value}" if has_value else names), str(action.help or "")
