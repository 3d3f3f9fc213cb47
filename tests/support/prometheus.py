"""Reads Prometheus's text format: strictly, line by line, and with the official parser."""

import re
from collections.abc import Iterator
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

_NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_NUMBER = r"(?:NaN|[+-]Inf|-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"
_SAMPLE = re.compile(rf"({_NAME})\{{({_LABEL}(?:,{_LABEL})*)\}} ({_NUMBER})")
_HEAD = re.compile(rf"# HELP ({_NAME}) (?:[^\\\n]|\\[\\n])+\n# TYPE ({_NAME}) (counter|gauge)\n")

#: Labels of a sample, sorted.
Labels = tuple[tuple[str, str], ...]
#: Name of a sample and labels -> value.
Values = dict[tuple[str, Labels], float]


def parse(text: str) -> Values:
    """Return all samples; fails unless the text is exactly what the format allows."""
    _check(text)
    values: Values = {}
    for family in text_string_to_metric_families(text):
        assert family.type in ("counter", "gauge"), family
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in values, f"twice: {key}"
            values[key] = sample.value
    return values


def _check(text: str) -> None:
    names: list[str] = []
    assert text == "" or text.endswith("\n")
    rest = text
    while rest:
        head = _HEAD.match(rest)
        assert head is not None, rest[:200]
        name, typed, kind = head.groups()
        assert name == typed
        assert name not in names, f"two groups of {name}"
        assert name.endswith("_total") == (kind == "counter")
        names.append(name)
        rest = rest[head.end() :]
        lines = list(_samples(rest))
        assert lines, f"{name} has no sample"
        for line in lines:
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == name
        rest = rest[sum(len(line) + 1 for line in lines) :]


def _samples(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if line.startswith("#") or not line:
            return
        yield line


def fetch(url: str) -> tuple[str, str]:
    """Return the content type and the text of a page."""
    with urlopen(url, timeout=30) as response:
        return response.headers["Content-Type"], response.read().decode()
