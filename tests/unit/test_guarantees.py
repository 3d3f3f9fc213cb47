"""The page of promises names tests that exist."""

import re

import pytest
from support.paths import ROOT, TESTS

PAGE = (ROOT / "docs" / "guarantees.md").read_text()
#: "redis/test_time_outs.py" or "redis/test_time_outs.py::test_tls".
NAMED = re.findall(r"`(\w+/test_\w+\.py)(?:::(\w+))?`", PAGE)


def test_each_promise_names_tests() -> None:
    promises = PAGE.split("\n## ")[1:]
    assert len(promises) >= 7
    assert all("Tried by: `" in promise for promise in promises)


@pytest.mark.parametrize(("file", "function"), sorted(set(NAMED)))
def test_the_tests_exist(file: str, function: str) -> None:
    text = (TESTS / file).read_text()
    assert not function or f"def {function}(" in text
