"""Prometheus's text format, version 0.0.4. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scrapy_bloom.crawl.stats import Kind

#: What the format is called in HTTP.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """What is measured.

    Args:
        name: its full name.
        kind: how it changes.
        meaning: what it counts or shows.
    """

    name: str
    kind: Kind
    meaning: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric.

    Args:
        labels: what it is the value of.
        value: the value.
    """

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all its values."""

    metric: Metric
    samples: Sequence[Sample]


def render(families: Iterable[Family]) -> str:
    """Return metrics with their values as text; a metric without any is left out."""
    lines = [line for family in families if family.samples for line in _lines(family)]
    return "".join(f"{line}\n" for line in lines)


def _lines(family: Family) -> Iterable[str]:
    metric = family.metric
    yield f"# HELP {metric.name} {_escape(metric.meaning)}"
    yield f"# TYPE {metric.name} {metric.kind.value}"
    for sample in family.samples:
        pairs = (f'{name}="{_escape_value(text)}"' for name, text in sample.labels.items())
        labels = ",".join(pairs)
        yield f"{metric.name}{{{labels}}} {_number(sample.value)}"


def _escape(text: str) -> str:
    # A lone surrogate, as in names that are not UTF-8, becomes a question mark.
    text = text.encode("utf-8", "replace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_value(text: str) -> str:
    return _escape(text).replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
