"""``scrapy bloom export``: a filter to a file, also while it is in use."""

import argparse
import sys
from pathlib import Path

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.extras.file import ArchiveWriter, writing
from scrapy_bloom.bloom.extras.save import Saved, save
from scrapy_bloom.bloom.model.units import plural
from scrapy_bloom.cli.render import progress
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    add_filter_options,
    complain,
    with_dates,
)

#: The file name that stands for the standard output or input.
STREAM = "-"

HELP = "save a filter to a file, also while it is in use"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    parser.add_argument("file", metavar="FILE", help="file to write; - is the standard output")
    parser.add_argument("--force", action="store_true", help="overwrite the file if it is there")


def run(session: CommandSession) -> ExitCode:
    """Write a filter to a file.

    Raises:
        NothingThereError: there is no filter.
        BloomError: the file or the server cannot be used.
    """
    opts, name = session.opts, session.window
    if opts.file == STREAM and (opts.json or sys.stdout.isatty()):
        other = "--json" if opts.json else "a terminal"
        raise ConfigurationError(f"a saved filter is binary, not for {other}: name a file")
    if opts.file != STREAM and not opts.force and Path(opts.file).is_file():
        raise ConfigurationError(f"the file {opts.file!r} is there already: --force overwrites it")
    with session.connect() as server:
        server.read(name)
        bloom = server.filter(name)
        with (
            writing(sys.stdout.buffer if opts.file == STREAM else opts.file) as file,
            progress("bytes of bitmaps saved") as show,
        ):
            writer = ArchiveWriter(file)
            saved = bloom.run(lambda view: save(view.keys, writer, show))
            if opts.file == STREAM:
                file.flush()
        if saved.lost:
            complain(
                "blocks with lost bitmaps (evicted, deleted), which are empty in the file: "
                f"{saved.lost}"
            )
        if opts.file != STREAM:
            report_file(session, server, saved, f"saved to {opts.file}, {writer.size:,} bytes")
    return ExitCode.FINE


def report_file(session: CommandSession, server: Server, saved: Saved, text: str) -> None:
    """Print what was saved, or what ``import`` has loaded."""
    key = server.key(session.window)
    document = {
        "address": server.address,
        "name": session.window,
        "key": key,
        "file": session.opts.file,
        "saved": saved.saved,
        "count": saved.count,
        "memory": saved.memory,
        "blocks": saved.header.blocks,
        "lost_blocks": saved.lost,
    }
    session.report(
        with_dates(document), f"{key} on {server.address}: {plural(saved.count, 'URL')} {text}"
    )
