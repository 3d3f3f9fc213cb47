"""The subcommands in the help of ``scrapy bloom``, below the names of their groups."""

import argparse
from collections.abc import Sequence

#: Groups in the order of the help, with what their subcommands do.
GROUPS = {
    "look": "show something; change nothing",
    "change": "change or delete a filter",
    "move": "move what is remembered into a filter, or a filter into a file and back",
}
#: Groups of subcommands; all others are in "look".
MEMBERS = {
    "change": ("settings", "rotate", "recrawl", "clear", "delete"),
    "move": ("migrate", "export", "import"),
}


def group_of(subcommand: str) -> str:
    """Return the group of a subcommand."""
    return next((group for group, names in MEMBERS.items() if subcommand in names), "look")


class _Group(argparse.Action):
    """A line of the help that has further lines below it."""

    def __init__(self, name: str, members: Sequence[argparse.Action]) -> None:
        super().__init__([], name, metavar=name, help=GROUPS[name])
        self._members = members

    def __call__(self, *_: object) -> None:
        """Do nothing: it is no argument."""

    def _get_subactions(self) -> Sequence[argparse.Action]:
        return self._members


class GroupedSubcommands(argparse._SubParsersAction):  # type: ignore[type-arg]  # noqa: SLF001
    """``add_subparsers`` whose help has groups, which argparse has only for options."""

    def _get_subactions(self) -> list[argparse.Action]:
        members: dict[str, list[argparse.Action]] = {group: [] for group in GROUPS}
        for action in self._choices_actions:
            members[group_of(action.dest)].append(action)
        return [_Group(group, actions) for group, actions in members.items()]
