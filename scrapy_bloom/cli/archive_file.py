"""What ``scrapy bloom export`` and ``import`` share."""

from collections.abc import Iterator
from contextlib import contextmanager

from scrapy_bloom.bloom.extras.saver import Progress, Saved
from scrapy_bloom.cli.session import CommandSession, Server, iso, print_json

#: The file that is the standard output or input.
STREAM = "-"


@contextmanager
def bitmap_progress(session: CommandSession, what: str, memory: int) -> Iterator[Progress]:
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


def report_file(
    session: CommandSession, server: Server, name: str, saved: Saved, text: str
) -> None:
    """Say what was done; not where the file is the standard output."""
    key = server.key(name)
    if session.printer is None:
        document = {"address": server.address, "name": name, "key": key, "file": session.opts.file}
        times = {"saved": saved.saved, "saved_utc": iso(saved.saved)}
        sizes = {"count": saved.count, "memory": saved.memory, "blocks": saved.header.blocks}
        print_json(document | times | sizes | {"lost_blocks": saved.lost})
    elif session.opts.file != STREAM or session.opts.command == "import":
        session.printer.show(f"{key} on {server.address}: {saved.count:,} URLs {text}")
