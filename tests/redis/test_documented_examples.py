"""The examples of docs/library.md run as they stand there."""

import re
from pathlib import Path
from typing import Any

import pytest
import redis
from support.paths import ROOT


def test_the_library_s_examples_run(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "library.md").read_text()
    monkeypatch.setattr(redis, "Redis", lambda **_: client)
    names: dict[str, Any] = {}
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) > 3
    for code in examples:
        exec(code, names)
    assert "b@example.com" in names["copy"]
    assert "apple" not in names["basket"]
    assert names["measured"].probes == 100_000
