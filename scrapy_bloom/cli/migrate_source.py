"""The source of a migration, by the options and the project's settings."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

from scrapy.utils.misc import load_object

from scrapy_bloom.bloom.client.connection import Connection, connect, connect_scrapy_redis
from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.cli.check import Identifier
from scrapy_bloom.cli.session import CommandSession
from scrapy_bloom.fingerprinter import ScrapyRedisFingerprinter
from scrapy_bloom.migrate.batches import Source
from scrapy_bloom.migrate.sources import SeenSource, SetSource, UrlSource, open_file

#: Where scrapy-redis keeps fingerprints, unless SCHEDULER_DUPEFILTER_KEY says otherwise.
SET_KEY = "%(spider)s:dupefilter"
OURS = "scrapy_bloom.ScrapyRedisFingerprinter"


def open_source(session: CommandSession, identifier: Identifier, stack: ExitStack) -> Source:
    """Return what the options name; the stack closes it.

    Raises:
        ConfigurationError: it is not there, or is not what it is said to be.
        StorageError: the SET's server did not answer.
    """
    opts = session.opts
    if opts.from_set is not None:
        key = opts.from_set or _set_key(session)
        connection = _connect(session)
        stack.callback(connection.close)
        return SetSource(connection.client, key, connection.label, session.window)
    if opts.from_seen is not None:
        return SeenSource(Path(opts.from_seen), session.window)

    def identify(url: str) -> tuple[str, bytes]:
        try:
            question = identifier.query("url", url)
        except ConfigurationError:
            raise
        except Exception as error:
            # A project's fingerprinter fails: no other URL is to be lost by that.
            raise ConfigurationError(
                f"{url!r:.80}, for which {identifier.name} fails with {type(error).__name__}: "
                f"{error!s:.80}"
            ) from error
        return question.window, question.item

    path = Path(opts.from_urls)
    if opts.from_urls == "-":
        stream, name = cast("IO[bytes]", sys.stdin.buffer), "the standard input"
    elif path.is_file() or not path.exists():
        return UrlSource(path, identify)
    else:
        stream = stack.enter_context(open_file(path, "--from-urls"))
        name = f"the pipe {str(path)!r}"
    copy = stack.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115 - the stack closes it
    shutil.copyfileobj(stream, copy)
    copy.flush()
    return UrlSource(Path(copy.name), identify, name)


def _set_key(session: CommandSession) -> str:
    """Return the key of the spider's SET, as scrapy-redis makes it."""
    spider = getattr(session.crawler.spidercls, "name", None)
    template = session.crawler.settings.get("SCHEDULER_DUPEFILTER_KEY") or SET_KEY
    if spider is None and "%(spider)s" in str(template):
        raise ConfigurationError(
            "each spider has a SET of its own: say which with --spider, or --from-set KEY"
        )
    try:
        return str(template % {"spider": spider})
    except (TypeError, ValueError, KeyError):
        raise ConfigurationError(
            "SCHEDULER_DUPEFILTER_KEY is a string in which %(spider)s stands for the spider's "
            f"name; got {template!r:.100}: correct it, or use --from-set KEY"
        ) from None


def _connect(session: CommandSession) -> Connection:
    timeout, url = session.settings.timeout, session.opts.from_server
    if url is None:
        return connect_scrapy_redis(session.crawler.settings, timeout=timeout)
    return connect(url, timeout=timeout, setting="--from-server")


def on_kind(session: CommandSession, name: str) -> Iterator[str]:
    """Refuse, or warn of, fingerprints of another kind than those that crawls will ask for."""
    opts = session.opts
    made = load_object(session.crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
    is_ours = isinstance(made, type) and issubclass(made, ScrapyRedisFingerprinter)
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
    if opts.from_urls is None and session.settings.window_rules and not session.is_chosen:
        yield (
            "BLOOM_WINDOW_RULES go by URLs, which fingerprints do not tell: all are recorded for "
            f"the window {session.window!r}, and requests that have another one do not find them"
        )
