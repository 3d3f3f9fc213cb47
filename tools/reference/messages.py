"""docs/reference/messages.md."""

from scrapy_bloom.messages import SECTIONS, Message
from tools.reference.markdown import bullets, document

INTRODUCTION = """\
Each warning and each error of a crawl ends with a code, as `[bloom-outage]`. Search this page
for the code. Texts may change from version to version, codes do not. Errors of the library have
their code without `bloom-` in the attribute `code`.

Messages are warnings unless their text here says otherwise. Most are logged once, or once for
each thing that they are about; stats count the rest."""


def page() -> str:
    """Return the page."""
    blocks = [INTRODUCTION]
    for heading, messages in SECTIONS.items():
        blocks += [f"## {heading}", *(_section(*item) for item in messages.items())]
    return document("Log messages and errors", "scrapy_bloom/messages.py", *blocks)


def _section(code: str, message: Message) -> str:
    facts = bullets(Cause=message.cause, Remedy=message.remedy)
    return f"### bloom-{code}\n\n{message.meaning}\n\n{facts}"
