"""``scrapy bloom import``: a filter from a file, whole or not at all."""

import argparse
import sys

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.extras.file import MAX_MEMORY_BYTES, ArchiveReader, reading
from scrapy_bloom.bloom.extras.install import load
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.cli.export import STREAM, report_file
from scrapy_bloom.cli.render import progress
from scrapy_bloom.cli.session import CommandSession, ExitCode, add_filter_options

HELP = "load a filter from a file"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_filter_options(parser)
    parser.add_argument("file", metavar="FILE", help="file to read; - is the standard input")
    parser.add_argument(
        "--max-memory",
        dest="file_memory",
        metavar="BYTES",
        default=MAX_MEMORY_BYTES,
        help="bytes that the filter may take on the server (by default 4 GiB)",
    )


def run(session: CommandSession) -> ExitCode:
    """Load a filter from a file.

    Raises:
        BloomError: the file or the server cannot be used.
    """
    opts, name = session.opts, session.window
    limit = validators.memory("--max-memory", opts.file_memory) or validators.MAX_MEMORY_BYTES
    with reading(sys.stdin.buffer if opts.file == STREAM else opts.file) as file:
        reader = ArchiveReader(file, limit)
        with session.connect() as server:
            bloom, keys = server.filter(name), Keys(server.key(name))
            with progress("bytes of bitmaps loaded") as show:
                saved = bloom.run_together(load(keys, reader, show))
            report_file(session, server, saved, f"loaded from {opts.file}")
    return ExitCode.FINE
