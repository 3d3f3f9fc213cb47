"""docs/reference/settings.md."""

import re
from pathlib import Path

from scrapy_bloom.bloom.model.spec import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE
from scrapy_bloom.kinds import Kind
from scrapy_bloom.settings import SETTINGS
from tools.reference import table

TEXT = Path(__file__).with_suffix(".md").read_text("utf-8")
#: The meaning of settings that are unset.
UNSET = {
    "BLOOM_REDIS_URL": "the server of scrapy-redis's settings, else `redis://localhost:6379`",
    "BLOOM_REDIS_PARAMS": "those of scrapy-redis's settings if they name the server, else none",
    "BLOOM_RECRAWL_AFTER": '`"never"`',
    "BLOOM_ROTATE_EVERY": '`"1 month"` for windows of 2 months and more, else half of the window',
    "BLOOM_CAPACITY": f"as stored, at first {DEFAULT_CAPACITY:,}",
    "BLOOM_ERROR_RATE": f"as stored, at first {DEFAULT_ERROR_RATE:.5f}",
    "BLOOM_BLOCKS": "4, or as many more as keep a bitmap within 32 MiB",
    "BLOOM_SEEDS": "drawn, as few as take at most 2% more memory than needed",
}
FIXED = ("BLOOM_BLOCKS", "BLOOM_SEEDS")
#: Lists and dicts in texts.
_EXAMPLE = re.compile(r"[\[{].+?[\]}]+")
_SECTION = re.compile(r"^### (\w+)\n(.*?)(?=\n##|\Z)", re.MULTILINE | re.DOTALL)


def page() -> str:
    """Return the page.

    Raises:
        ValueError: the text has other settings than the table.
    """
    listed = [found[1] for found in _SECTION.finditer(TEXT)]
    if wrong := {*listed} ^ {*SETTINGS}:
        raise ValueError(
            f"tools/reference/settings.md and scrapy_bloom/settings.py differ: {wrong}"
        )
    rows = [(f"[`{n}`](#{n.lower()})", SETTINGS[n].metadata["help"]) for n in listed]
    filled = _SECTION.sub(lambda found: _section(found[1], found[2].strip()), TEXT)
    return filled.replace("{settings}", table(("setting", "meaning"), rows))


def default(name: str) -> str:
    """Return the default of a setting, as a user would write it."""
    value = SETTINGS[name].metadata["default"]
    return UNSET.get(name) or (f'`"{value}"`' if isinstance(value, str) else f"`{value}`")


def _section(name: str, text: str) -> str:
    kind: Kind = SETTINGS[name].metadata["kind"]
    accepts = _EXAMPLE.sub(r"`\g<0>`", kind.accepts)
    facts = [f"- Accepts: {accepts}", f"- Default: {default(name)}"]
    facts += ["- Fixed: when the filter is created"] if name in FIXED else []
    return "\n\n".join((f"### `{name}`", text, "\n".join(facts))) + "\n"
