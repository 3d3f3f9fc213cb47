"""docs/reference/commands.md."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from scrapy.settings import Settings

from scrapy_bloom.cli.command import COMMANDS, EXIT_CODES, BloomCommand
from tools.reference import table

TEXT = Path(__file__).with_suffix(".md").read_text("utf-8")
#: Options of all commands; argparse's own, and the group of Scrapy's, which aren't described here.
COMMON, HELP, SCRAPY = {"--spider", "--key", "--json"}, {"-h", "--help"}, "Global Options"


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
        if group.title != SCRAPY
        for action in group._group_actions  # noqa: SLF001
        if not HELP & {*action.option_strings}
    ]


def page() -> str:
    """Return the page."""
    found, what = parsers(), "effect"
    overview = [(f"[`{name}`](#{name})", module.HELP) for name, module in COMMANDS.items()]
    common = [one for one in own_actions(found["info"]) if COMMON & {*one.option_strings}]
    codes = [(str(number), meaning) for number, meaning in EXIT_CODES.items()]
    values = {
        "{overview}": table(("command", what), overview),
        "{sections}": "\n\n".join(_section(name, parser) for name, parser in found.items()),
        "{common}": table(("option", what), _rows(common)),
        "{codes}": table(("code", "meaning"), codes),
    }
    text = TEXT
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    own = [one for one in own_actions(parser) if not COMMON & {*one.option_strings}]
    examples = COMMANDS[name].EXAMPLES.splitlines()
    lines = [line if line.startswith("#") else f"$ {line}" for line in examples]
    parts = [
        f"## `{name}`",
        " ".join(str(COMMANDS[name].__doc__).partition("\n\n")[2].split()),
        "\n".join(["```console", *lines, "```"]),
        table(("argument", "effect"), _rows(own)) if own else "",
    ]
    return "\n\n".join(filter(None, parts))


def _rows(actions: Iterable[argparse.Action]) -> Iterator[tuple[str, str]]:
    for action in actions:
        names = ", ".join(action.option_strings) or str(action.metavar)
        has_value = bool(action.option_strings) and action.nargs != 0
        value = f" {action.metavar or action.dest.upper()}" if has_value else ""
        yield f"`{names}{value}`", str(action.help or "")
