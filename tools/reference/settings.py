"""docs/reference/settings.md."""

import re
from collections.abc import Mapping
from pathlib import Path

from scrapy_bloom.bloom.model.spec import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE
from scrapy_bloom.settings import SETTINGS, Kind
from tools.reference.markdown import bullets, code, document, sentence, table

INTRODUCTION = """\
All settings are optional. You can write them into `settings.py`, into a spider's
`custom_settings`, or on the command line (`-s NAME=VALUE`), where each value is text. A misspelt
`BLOOM_` setting is an error that names the right one.

Settings that are *fixed* can't be changed after the first run. If you leave them out, the filter
keeps what it has."""
#: Headings, and the settings under each.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "The filter and its server": (
        *("ENABLED", "REDIS_URL", "REDIS_PARAMS", "KEY", "TIMEOUT", "ON_REDIS_ERROR"),
        "WAIT_REPLICAS",
    ),
    "What is remembered, and when": (
        *("REMEMBER", "ITEMS_ONLY", "CRAWLED_STATUSES", "RETRY_AFTER"),
    ),
    "Several workers": ("SHARE_WORK", "HEARTBEAT"),
    "When pages are crawled again": ("RECRAWL_AFTER", "ROTATE_EVERY", "RECRAWL_RULES"),
    "Size and error rate": ("CAPACITY", "ERROR_RATE", "BLOCKS", "SEEDS"),
}
#: What settings that are unset stand for.
UNSET = {
    "BLOOM_REDIS_URL": "the server of scrapy-redis's settings, else `redis://localhost:6379`",
    "BLOOM_REDIS_PARAMS": "those of scrapy-redis's settings if they name the server, else none",
    "BLOOM_RECRAWL_AFTER": '`"never"`',
    "BLOOM_ROTATE_EVERY": '`"1 month"` for windows of 2 months and more, else half of the window',
    "BLOOM_CAPACITY": f"as stored, at first {DEFAULT_CAPACITY:,}",
    "BLOOM_ERROR_RATE": f"as stored, at first {DEFAULT_ERROR_RATE:.5f}",
    "BLOOM_BLOCKS": "16, or as many more as keep a bitmap within 8 MiB",
    "BLOOM_SEEDS": "drawn, as many as need the fewest bits for the error rate",
}
FIXED = ("BLOOM_BLOCKS", "BLOOM_SEEDS")
#: Lists and dicts in texts.
_EXAMPLE = re.compile(r"[\[{].+?[\]}]+")
#: What else there is to know of settings, by their names.
_, *_PARTS = re.split(
    r"^## (\w+)\n", Path(__file__).with_suffix(".md").read_text("utf-8"), flags=re.MULTILINE
)
ABOUT = {name: text.strip() for name, text in zip(_PARTS[::2], _PARTS[1::2], strict=True)}


def page() -> str:
    """Return the page.

    Raises:
        ValueError: GROUPS has other settings than the table, or a text is about another one.
    """
    listed = [f"BLOOM_{name}" for names in GROUPS.values() for name in names]
    if wrong := {*listed} ^ {*SETTINGS} or ABOUT.keys() - SETTINGS.keys():
        raise ValueError(f"these differ from the settings: {wrong}")
    rows = [
        (f"[{code(name)}](#{name.lower()})", default(name), SETTINGS[name].metadata["help"])
        for name in listed
    ]
    blocks = [INTRODUCTION, table(("setting", "default", "what it is"), rows)]
    for heading, names in GROUPS.items():
        blocks += [f"## {heading}", *(_section(f"BLOOM_{name}") for name in names)]
    return document("Settings", "scrapy_bloom/settings.py", *blocks)


def default(name: str) -> str:
    """Return the default of a setting, as a user would write it."""
    value = SETTINGS[name].metadata["default"]
    return UNSET.get(name) or code(f'"{value}"' if isinstance(value, str) else str(value))


def _section(name: str) -> str:
    kind: Kind = SETTINGS[name].metadata["kind"]
    facts = bullets(
        Accepts=_EXAMPLE.sub(r"`\g<0>`", kind.accepts),
        Default=default(name),
        Fixed="when the filter is created" if name in FIXED else "",
    )
    text = "\n\n".join([sentence(SETTINGS[name].metadata["help"]), ABOUT.get(name, "")]).strip()
    return f"### `{name}`\n\n{text}\n\n{facts}"
