"""The source of a migration, by the options and the project's settings."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from scrapy_bloom.bloom.client.connection import connect, connect_scrapy_redis
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.session import CommandSession
from scrapy_bloom.fingerprinter import ScrapyRedisFingerprinter
from scrapy_bloom.migrate.batches import Source
from scrapy_bloom.migrate.sources import SeenSource, SetSource, UrlSource, open_file

#: Where scrapy-redis keeps fingerprints, unless SCHEDULER_DUPEFILTER_KEY is set.
SET_KEY = "%(spider)s:dupefilter"
OURS = "scrapy_bloom.ScrapyRedisFingerprinter"


def open_source(session: CommandSession, identifier: Identifier, stack: ExitStack) -> Source:
    """Return the source that the options name; the stack closes it.

    Raises:
        ConfigurationError: it does not exist, or is of another kind.
        StorageError: the SET's server did not answer.
    """
    opts = session.opts
    if opts.from_seen is not None:
        return SeenSource(Path(opts.from_seen), session.window)
    if opts.from_urls is not None:
        name = "the standard input" if opts.from_urls == "-" else f"the file {opts.from_urls!r}"
        return UrlSource(_open_urls(opts.from_urls, stack), name, identifier.identify)
    timeout = session.settings.timeout
    if opts.from_server is None:
        connection = connect_scrapy_redis(session.crawler.settings, timeout=timeout)
    else:
        connection = connect(opts.from_server, timeout=timeout, setting="--from-server")
    stack.callback(connection.close)
    key = opts.from_set or set_key(session)
    return SetSource(connection.client, key, connection.label, session.window)


def _open_urls(name: str, stack: ExitStack) -> IO[bytes]:
    """Return a file that can be read more than once: of a pipe, a copy."""
    file: IO[bytes] = sys.stdin.buffer
    if name != "-":
        file = stack.enter_context(open_file(Path(name), "--from-urls"))
    if file.seekable():
        return file
    copy = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    shutil.copyfileobj(file, copy)
    copy.seek(0)
    return copy


def set_key(session: CommandSession) -> str:
    """Return the key of the spider's SET, as scrapy-redis makes it."""
    spider = getattr(session.crawler.spidercls, "name", None)
    template = session.crawler.settings.get("SCHEDULER_DUPEFILTER_KEY") or SET_KEY
    if spider is None and "%(spider)s" in template:
        raise ConfigurationError(
            "each spider has a SET of its own: say which with --spider, or --from-set KEY"
        )
    return str(template % {"spider": spider})


def check_fingerprinter(session: CommandSession, identifier: Identifier) -> Iterator[str]:
    """Yield warnings of entries that crawls with this fingerprinter may not find.

    Raises:
        ConfigurationError: crawls certainly do not find them.
    """
    opts, name = session.opts, identifier.name
    is_ours = isinstance(identifier.fingerprinter, ScrapyRedisFingerprinter)
    if opts.from_set is not None and not is_ours:
        text = (
            f"REQUEST_FINGERPRINTER_CLASS is {name}, whose fingerprints differ from scrapy-redis's:"
            f" what is imported would never be found. Set it to {OURS!r}"
        )
        if not opts.any_fingerprinter:
            raise ConfigurationError(
                f"{text}; or add --any-fingerprinter, if that class does make what is in the SET"
            )
        yield text
    if opts.from_seen is not None and is_ours:
        yield (
            f"REQUEST_FINGERPRINTER_CLASS is {name}: what a crawl with Scrapy's own fingerprinter "
            "has left in requests.seen is never found with it"
        )
    if opts.from_urls is None and session.settings.recrawl_rules and not session.is_chosen:
        yield (
            "BLOOM_RECRAWL_RULES match URLs, which fingerprints do not have: all are recorded for "
            f"the window {session.window!r}, and requests of other windows do not find them"
        )
