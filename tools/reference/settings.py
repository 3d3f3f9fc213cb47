"""docs/reference/settings.md."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scrapy_bloom import ConfigurationError
from scrapy_bloom.bloom.errors import in_words
from scrapy_bloom.bloom.options import Option
from scrapy_bloom.settings import FILTER_SETTINGS, SETTINGS, WORDS
from tools.reference.markdown import bullets, code, document, sentence, table

INTRODUCTION = """\
All settings are optional. They may stand in `settings.py`, in a spider's `custom_settings`, or
on the command line (`-s NAME=VALUE`), where values are text. Numbers may be written as `"10M"`,
memory as `"2 GB"` or `"2 GiB"`, rates as `"0.001%"`, times as `"30 seconds"`. A `BLOOM_`
setting that does not exist is an error.

What is unset has its default, whatever an earlier run was given. Settings of the filter that are
*fixed* cannot change while it lives: unset, they are as stored, and the default is that of a new
filter. A window that forgets earlier than the stored one is refused until it is
[applied](../how-to/choose-a-window.md#change-it-later)."""

#: Headings, and the settings under each.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "The filter and its server": ("enabled", "redis_url", "redis_params", "key", "timeout"),
    "When pages are crawled again": (
        *("recrawl_after", "rotate_every", "run"),
        *("recrawl_rules", "start_recrawl_after", "ledger", "stagger"),
    ),
    "Size and error rate": (
        *("capacity", "error_rate", "growth", "max_memory"),
        *("blocks", "seeds"),
    ),
    "Crashes and failures": (
        *("remember", "confirm", "crawled_statuses", "retry_after", "retry_item_errors"),
        *("heartbeat", "pending_memory", "keep_headers", "on_redis_error", "wait_replicas"),
    ),
    "Speed": ("batch", "cache_size"),
    "Monitoring": ("metrics_port",),
}
#: No setting accepts the first; those that accept lengths of time only refuse the second.
WRONG = (object(), "1 run")
#: What else there is to know of settings, by their names.
_, *_PARTS = re.split(
    r"^## (\w+)\n", Path(__file__).with_suffix(".md").read_text("utf-8"), flags=re.MULTILINE
)
ABOUT = {name: " ".join(text.split()) for name, text in zip(_PARTS[::2], _PARTS[1::2], strict=True)}
_BY_NAME = {name.removeprefix("BLOOM_").lower(): own for name, own in SETTINGS.items()}


def page() -> str:
    """Return the page."""
    listed = [name for names in GROUPS.values() for name in names]
    if sorted(listed) != sorted(_BY_NAME):
        raise ValueError(f"GROUPS differs from the settings: {set(listed) ^ set(_BY_NAME)}")
    if unknown := ABOUT.keys() - SETTINGS.keys():
        raise ValueError(f"settings.md is about what is no setting: {unknown}")
    blocks = [INTRODUCTION, _overview(listed)]
    for heading, names in GROUPS.items():
        blocks += [f"## {heading}", *map(_section, names)]
    return document("Settings", "scrapy_bloom/settings.py and bloom/options.py", *blocks)


def takes(name: str, parse: Callable[[str, Any], Any]) -> str:
    """Return what a setting accepts: what its parser says when it gets something else."""
    said = _said(name, parse, WRONG[1]) or _said(name, parse, WRONG[0])
    if not said.startswith(f"{name} is "):
        raise ValueError(f"{name} does not say what it accepts: {said!r}")
    return re.sub(r"(; got .*|; write it .*)$", "", said.removeprefix(f"{name} is "))


def _said(name: str, parse: Callable[[str, Any], Any], value: object) -> str:
    try:
        parse(name, value)
    except ConfigurationError as error:
        return in_words(str(error), WORDS)
    return ""


def default(own: Option) -> str:
    """Return the default of a setting."""
    value = own.value
    if own.default:
        return own.default
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, bool | dict):
        return f"`{value}`"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def _overview(names: list[str]) -> str:
    rows = []
    for name in names:
        setting = f"BLOOM_{name.upper()}"
        own = _BY_NAME[name]
        link = f"[`{setting}`](#{setting.lower()})"
        rows.append((link, default(own)))
    return table(("setting", "default"), rows)


def _section(attribute: str) -> str:
    name, own = f"BLOOM_{attribute.upper()}", _BY_NAME[attribute]
    option = next((name for name, own in FILTER_SETTINGS.items() if own == attribute), "")
    facts = bullets(
        Accepts=takes(name, own.parse),
        Default=default(own),
        Fixed="when the filter is created" if own.stored else "",
        Parameter_of_the_library=code(option) if option else "",
    )
    text = f"{sentence(own.help)} {ABOUT.get(name, '')}".strip()
    return f"### `{name}`\n\n{text}\n\n{facts}"
