"""Reads Prometheus's text format with the official parser."""

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

#: Labels of a sample, sorted.
Labels = tuple[tuple[str, str], ...]
#: Name of a sample and labels -> value.
Values = dict[tuple[str, Labels], float]


def parse(text: str) -> Values:
    """Return all samples."""
    values: Values = {}
    for family in text_string_to_metric_families(text):
        assert family.samples, f"{family.name} has no sample"
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in values, f"twice: {key}"
            values[key] = sample.value
    return values


def fetch(url: str) -> str:
    """Return the text of a page."""
    with urlopen(url, timeout=30) as response:
        text: str = response.read().decode()
        return text
