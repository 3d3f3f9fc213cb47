"""What a command is."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from scrapy_bloom.cli.project import Project


class ExitCode(IntEnum):
    """How a command ended."""

    #: It has done what it was asked.
    FINE = 0
    #: There is no such filter, a URL isn't remembered, or the user said no.
    NO = 1
    #: The arguments or settings are wrong, or the server can't be used.
    FAILED = 2


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Args:
        name: follows ``scrapy bloom``.
        help: what it does, in a line.
        examples: lines of a shell, some of them comments.
        run: runs it; may raise any error of the package.
        add_options: adds its own options to its parser.
    """

    name: str
    help: str
    examples: str
    run: Callable[[Project, argparse.Namespace], ExitCode]
    add_options: Callable[[argparse.ArgumentParser], object] = lambda _: None
