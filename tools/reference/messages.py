"""docs/reference/messages.md."""

from collections import defaultdict
from collections.abc import Iterator

from scrapy_bloom.bloom.errors import (
    _KINDS,
    _NO_PRIMARY,
    _REMEDIES,
    _TLS_REMEDIES,
    StorageError,
    in_words,
)
from scrapy_bloom.messages import ERRORS, SECTIONS, Message
from scrapy_bloom.settings import WORDS
from tools.reference.markdown import bullets, document, table

INTRODUCTION = """\
Each warning and each error of a crawl ends with a code, as `[bloom-outage]`. Search this page
for the code. Texts may change from version to version, codes do not. Errors of the library have
their code without `bloom-` in the attribute `code`.

Messages are warnings unless their text here says otherwise. Most are logged once, or once for
each thing that they are about; stats count the rest."""

ON_SERVERS = """\
What errors of these codes say after the address of the server; `...` stands for what the server or
OpenSSL has answered. In a crawl that is under way, they are the reason in `[bloom-outage]`."""


def page() -> str:
    """Return the page."""
    blocks = [INTRODUCTION]
    for heading, messages in SECTIONS.items():
        blocks += [f"## {heading}", *(_section(*item) for item in messages.items())]
        if messages is ERRORS:
            blocks += ["### Problems with the server", ON_SERVERS]
            blocks.append(table(("the server ...", "code"), problems()))
    return document("Log messages and errors", "scrapy_bloom/messages.py", *blocks)


def problems() -> Iterator[tuple[str, str]]:
    """Yield what errors say about servers, and their codes."""
    for pattern, remedy in (*_REMEDIES, *_TLS_REMEDIES):
        if pattern != _NO_PRIMARY:  # its text is that of the exception
            words = defaultdict(lambda: "...", WORDS, if_late="", if_closed="")
            code = _KINDS.get(pattern, StorageError).code
            yield in_words(remedy.format_map(words), WORDS), f"[bloom-{code}](#bloom-{code})"


def _section(code: str, message: Message) -> str:
    facts = bullets(Cause=message.cause, Remedy=message.remedy)
    return f"### bloom-{code}\n\n{message.meaning}\n\n{facts}"
