"""Shared by ``scrapy bloom export`` and ``import``."""

from scrapy_bloom.bloom.extras.saver import Saved
from scrapy_bloom.bloom.model.units import plural
from scrapy_bloom.cli.session import CommandSession, Server, with_dates

#: The file name that stands for the standard output or input.
STREAM = "-"


def report_file(session: CommandSession, server: Server, saved: Saved, text: str) -> None:
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
    session.report(
        with_dates(document), f"{key} on {server.address}: {plural(saved.count, 'URL')} {text}"
    )
