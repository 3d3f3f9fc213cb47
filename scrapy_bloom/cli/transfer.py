"""``scrapy bloom export`` and ``import``: a filter to a file, and back."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scrapy_bloom.bloom import validators
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.extras.archive import MAX_MEMORY, ArchiveReader, ArchiveWriter
from scrapy_bloom.bloom.extras.loader import Loader, load
from scrapy_bloom.bloom.extras.saver import Progress, Saved, Saver
from scrapy_bloom.bloom.extras.streams import reading, writing
from scrapy_bloom.bloom.model.keys import Keys
from scrapy_bloom.bloom.protocol.info import describe
from scrapy_bloom.cli.session import CommandSession, Server, complain, iso, print_json

#: The file that is the standard output or input.
STREAM = "-"


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``export`` beside those of all filters."""
    parser.add_argument("file", metavar="FILE", help="file to write; - is the standard output")
    parser.add_argument("--force", action="store_true", help="overwrite the file if it is there")


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``import`` beside those of all filters."""
    parser.add_argument("file", metavar="FILE", help="file to read; - is the standard input")
    parser.add_argument(
        "--max-memory",
        dest="file_memory",
        metavar="BYTES",
        default=MAX_MEMORY,
        help="bytes that the filter may take on the server (by default 4 GiB)",
    )


def export_filter(session: CommandSession) -> None:
    """Write a filter to a file.

    Raises:
        NothingThereError: there is no filter.
        BloomError: the file or the server cannot be used.
    """
    opts, name = session.opts, session.window
    if opts.file == STREAM and (opts.json or sys.stdout.isatty()):
        other = "--json" if opts.json else "a terminal"
        raise ConfigurationError(f"a saved filter is binary, and nothing for {other}: name a file")
    if opts.file == STREAM and sys.stdout.name == os.devnull:  # see _prepare_streams
        raise ConfigurationError("the standard output is closed: name a file")
    if opts.file != STREAM and not opts.force and Path(opts.file).is_file():
        raise ConfigurationError(f"the file {opts.file!r} is there already: --force overwrites it")
    with session.connect() as server:
        memory = describe(server.key(name), server.read(name)).memory
        bloom = server.filter(name)
        with (
            writing(sys.stdout.buffer if opts.file == STREAM else opts.file) as file,
            _progress(session, "saved", memory) as progress,
        ):
            writer = ArchiveWriter(file)
            saved = bloom.run(lambda view: Saver(view.keys, writer, progress).run())
            if opts.file == STREAM:
                file.flush()
        if saved.lost:
            complain(
                "blocks with lost bitmaps (evicted, deleted), which are empty in the file: "
                f"{saved.lost}"
            )
        _report(session, server, name, saved, f"saved to {opts.file}, {writer.size:,} bytes")


def import_filter(session: CommandSession) -> None:
    """Load a filter from a file.

    Raises:
        BloomError: the file or the server cannot be used.
    """
    opts, name = session.opts, session.window
    if opts.file == STREAM and sys.stdin.isatty():
        raise ConfigurationError("a saved filter is binary, and nothing to be typed: name a file")
    limit = validators.memory("--max-memory", opts.file_memory) or validators.MAX_MEMORY
    with reading(sys.stdin.buffer if opts.file == STREAM else opts.file) as file:
        reader = ArchiveReader(file, limit)
        with session.connect() as server:
            bloom, keys = server.filter(name), Keys(server.key(name))
            with _progress(session, "loaded", reader.memory) as progress:
                loading = Loader(keys, reader, progress=progress)
                saved = load(lambda steps: bloom.run(lambda _: steps), loading)
            _report(session, server, name, saved, f"loaded from {opts.file}")


@contextmanager
def _progress(session: CommandSession, what: str, memory: int) -> Iterator[Progress]:
    """Show how many MiB of bitmaps are done."""
    with session.progress(f"MiB of bitmaps {what}", memory >> 20) as advance:
        shown = 0

        def show(done: int, _: int) -> None:
            nonlocal shown
            now = done >> 20
            if now > shown:
                advance(now - shown)
                shown = now

        yield show


def _report(session: CommandSession, server: Server, name: str, saved: Saved, text: str) -> None:
    """Say what was done; not where the file is the standard output."""
    key = server.key(name)
    if session.tables is None:
        document = {"address": server.address, "name": name, "key": key, "file": session.opts.file}
        times = {"saved": saved.saved, "saved_utc": iso(saved.saved)}
        sizes = {"count": saved.count, "memory": saved.memory, "blocks": saved.header.blocks}
        print_json(document | times | sizes | {"lost_blocks": saved.lost})
    elif session.opts.file != STREAM or session.opts.command == "import":
        session.tables.show(f"{key} on {server.address}: {saved.count:,} URLs {text}")
