"""``scrapy bloom export`` and ``import``: a filter to a file, and back; whole or not at all."""

import sys
from pathlib import Path

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.extras.file import (
    MAX_MEMORY_BYTES,
    ArchiveReader,
    ArchiveWriter,
    reading,
    writing,
)
from scrapy_bloom.bloom.extras.save import Saved, save
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.cli.output import complain, progress, with_dates
from scrapy_bloom.cli.server import ProjectServer
from scrapy_bloom.cli.session import FILTER, CommandSession, option, subcommand

#: The file name that stands for the standard output or input.
STREAM = "-"


@subcommand(
    "save a filter to a file, also while it is in use",
    *FILTER,
    option("file", metavar="FILE", help="file to write; - is the standard output"),
    option("--force", action="store_true", help="overwrite the file if it is there"),
)
def export(session: CommandSession) -> None:
    """Write a filter to a file, also while it is in use."""
    opts = session.opts
    if opts.file == STREAM and (opts.json or sys.stdout.isatty()):
        other = "--json" if opts.json else "a terminal"
        raise ConfigurationError(f"a saved filter is binary, not for {other}: name a file")
    if opts.file != STREAM and not opts.force and Path(opts.file).is_file():
        raise ConfigurationError(f"the file {opts.file!r} is there already: --force overwrites it")
    with session.connect() as server:
        bloom = server.read(session.window).bloom
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
            _report(session, server, saved, f"saved to {opts.file}, {writer.size:,} bytes")


@subcommand(
    "load a filter from a file",
    *FILTER,
    option("file", metavar="FILE", help="file to read; - is the standard input"),
    option(
        "--max-memory",
        dest="file_memory",
        metavar="BYTES",
        default=MAX_MEMORY_BYTES,
        help="bytes that the filter may take on the server (by default 4 GiB)",
    ),
)
def import_(session: CommandSession) -> None:
    """Load a filter from a file."""
    opts, name = session.opts, session.window
    limit = validators.memory("--max-memory", opts.file_memory) or validators.MAX_MEMORY_BYTES
    with reading(sys.stdin.buffer if opts.file == STREAM else opts.file) as file:
        reader = ArchiveReader(file, limit)
        with session.connect() as server:
            bloom = server.filter(server.key(name))
            with progress("bytes of bitmaps loaded") as show:
                saved = bloom.restore(reader, show)
            _report(session, server, saved, f"loaded from {opts.file}")


def _report(session: CommandSession, server: ProjectServer, saved: Saved, text: str) -> None:
    """Print what was saved or loaded."""
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
    text = f"{plural(saved.count, 'URL')} {text}"
    session.report(with_dates(document), f"{key} on {server.address}: {text}")
