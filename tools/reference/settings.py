"""docs/reference/settings.md."""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from scrapy_bloom import ConfigurationError
from scrapy_bloom.bloom.errors import in_words
from scrapy_bloom.bloom.options import OPTIONS
from scrapy_bloom.settings import ATTRIBUTES, WORDS, BloomSettings
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

#: Headings, and the attributes of ``BloomSettings`` under each.
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
        *("remember", "crawled_statuses", "retry_after", "retry_item_errors", "heartbeat"),
        *("pending_memory", "keep_headers", "on_redis_error", "wait_replicas"),
    ),
    "Speed": ("batch", "cache_size"),
    "Monitoring": ("metrics_port",),
}
#: No setting accepts the first; those that accept lengths of time only refuse the second.
WRONG = (object(), "1 run")
_BY_ATTRIBUTE = {own.name: own for own in fields(BloomSettings)}
#: Attributes of options of filters -> parameter, and whether it is fixed.
_OPTIONS = {
    ATTRIBUTES[option.name]: (option.name, bool(option.stored))
    for option in OPTIONS
    if not option.library_only
}


def page() -> str:
    """Return the page."""
    listed = [name for names in GROUPS.values() for name in names]
    if sorted(listed) != sorted(_BY_ATTRIBUTE):
        raise ValueError(f"GROUPS differs from the settings: {set(listed) ^ set(_BY_ATTRIBUTE)}")
    blocks = [INTRODUCTION, _overview(listed)]
    for heading, names in GROUPS.items():
        blocks += [f"## {heading}", *(_section(_BY_ATTRIBUTE[name]) for name in names)]
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


def default(own: Field[Any]) -> str:
    """Return the default of a setting."""
    if text := str(own.metadata["default"]):
        return text
    value = {} if own.default is MISSING else own.default
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, bool | dict):
        return f"`{value}`"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def _overview(names: list[str]) -> str:
    rows = []
    for name in names:
        setting = f"BLOOM_{name.upper()}"
        own = _BY_ATTRIBUTE[name]
        link = f"[`{setting}`](#{setting.lower()})"
        rows.append((link, default(own), own.metadata["help"]))
    return table(("setting", "default", "what it is"), rows)


def _section(own: Field[Any]) -> str:
    name = f"BLOOM_{own.name.upper()}"
    parameter, is_fixed = _OPTIONS.get(own.name, ("", False))
    facts = bullets(
        Accepts=takes(name, own.metadata["parse"]),
        Default=default(own),
        Fixed="when the filter is created" if is_fixed else "",
        Parameter_of_the_library=code(parameter) if parameter else "",
    )
    about = own.metadata["about"]
    text = f"{sentence(own.metadata['help'])} {about}".strip()
    return f"### `{name}`\n\n{text}\n\n{facts}"
