"""docs/scaling.md agrees with the code and with what was measured."""

import json
import re
from typing import Any

import pytest

from tools import scaling
from tools.scaling import render


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(scaling.MEASURED.read_text("utf-8"))
    return found


def test_the_page_is_as_computed_now(measured: dict[str, Any]) -> None:
    """If this fails: python -m tools.scaling"""
    page = scaling.PAGE.read_text("utf-8")
    assert set(re.findall(r"<!-- ([a-z]+) -->\n", page)) == {"end", "facts", *scaling.TABLES}
    assert render(page, measured) == page
