"""docs/reference/commands.md."""

import argparse
from collections import Counter
from collections.abc import Iterable

from scrapy.settings import Settings

from scrapy_bloom.cli.command import EXIT_CODES, SUBCOMMANDS, BloomCommand
from tools.reference.markdown import block, code, document, sentence, table

INTRODUCTION = """\
`scrapy bloom <subcommand>` works in a project, with its settings, and outside of one, with
`-s BLOOM_REDIS_URL=...` and `--key`. Filters are used as they are stored.

Every subcommand also takes Scrapy's own options, as `-s NAME=VALUE` and `-L LEVEL`:
`scrapy bloom <subcommand> -h` lists them."""
#: Options of so many subcommands are described once.
COMMON = 5
#: Of argparse and of Scrapy: not described here.
_OTHERS = ("-h", "--help")
_GROUP_OF_SCRAPY = "Global Options"


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
    rows = [(f"[`{name}`](#{name})", one.help) for name, one in SUBCOMMANDS.items()]
    found = parsers()
    counted = Counter(row for parser in found.values() for row in _rows(own_actions(parser)))
    common = [row for row, count in counted.items() if count >= COMMON]
    sections = [_section(name, parser, common) for name, parser in found.items()]
    overview = table(("subcommand", "what it does"), rows)
    options = table(("common option", "what it is"), common)
    exit_codes = table(("exit code", "meaning"), _exit_codes())
    blocks = (INTRODUCTION, overview, options, exit_codes, *sections)
    return document("Commands", "the parsers of scrapy_bloom/cli", *blocks)


def _exit_codes() -> Iterable[tuple[str, str]]:
    _, _, text = EXIT_CODES.rstrip(".").partition(": ")
    for part in text.split("; "):
        number, _, meaning = part.partition(" ")
        yield number, meaning


def _section(name: str, parser: argparse.ArgumentParser, common: Iterable[tuple[str, str]]) -> str:
    actions = own_actions(parser)
    positional = [action for action in actions if not action.option_strings]
    usage = " ".join(["scrapy bloom", name, "[options]", *map(_usage, positional)])
    rows = list(_rows(actions))
    own = [row for row in rows if row not in common]
    also = ", ".join(option for option, text in rows if (option, text) in common)
    parts = [
        f"## `{name}`",
        sentence(SUBCOMMANDS[name].help),
        block(usage) if positional else "",
        table(("option", "what it is"), own) if own else "",
        f"Also {also}." if also else "",
    ]
    return "\n\n".join(filter(None, parts))


def _usage(action: argparse.Action) -> str:
    return f"[{action.metavar} ...]" if action.nargs == "*" else str(action.metavar)


def _rows(actions: Iterable[argparse.Action]) -> Iterable[tuple[str, str]]:
    for action in actions:
        names = ", ".join(action.option_strings) or str(action.metavar)
        has_value = bool(action.option_strings) and action.nargs != 0
        value = action.metavar or action.dest.upper()
        yield code(f"{names} {value}" if has_value else names), str(action.help or "")
