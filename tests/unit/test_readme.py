"""The README says what is so."""

import re
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom.bloom.model.sizing import plan
from scrapy_bloom.settings import SETTINGS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_library_example_runs(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"## As a library\n\n```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.setattr(redis, "Redis", lambda: client)
    names: dict[str, object] = {}
    exec(code, names)
    assert len(names["seen"]) == 2


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


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_is_documented(name: str) -> None:
    assert f"| `{name}` |" in README


def test_every_documented_setting_exists() -> None:
    assert set(re.findall(r"BLOOM_[A-Z_]+", README)) <= set(SETTINGS)


def test_the_numbers_are_those_of_the_default_plan() -> None:
    planned = plan(1_000_000, 1e-5)
    assert f"are {planned.memory / 2**20:.1f} MiB" in README
    assert f"about {round(planned.bits_per_url + 0.5)} bits a URL" in README


def test_the_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", README)) <= targets


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/design.md",
        "docs/cache-guard.md",
        "docs/library.md",
        "example_project/README.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target
