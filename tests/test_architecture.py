"""The shape of the package: what imports what, and what a script must say about itself."""

import ast
import re
from importlib import resources
from pathlib import Path

import pytest

import scrapy_bloom
from scrapy_bloom.scripts import load

PACKAGE = Path(scrapy_bloom.__file__).parent
#: From the bottom to the top: a module imports only modules that stand before it.
ORDER = [
    ["errors"],
    ["sizing", "schedule", "estimate"],
    ["hashing", "keys", "scripts", "audit"],
    ["header"],
    ["generations"],
    ["geometry"],
    ["ring"],
    ["state", "wanted", "calls", "contents"],
    ["values", "rings", "combine"],
    ["view"],
    ["frames"],
    ["archive"],
    ["membership", "info", "forecast", "saving", "together"],
    ["loading"],
    ["building"],
    ["algebra"],
    ["pending", "counting"],
    ["workers"],
    ["deadline", "addresses", "locks", "places"],
    ["embedded"],
    ["connection"],
    ["driver", "async_driver"],
    ["base"],
    ["filter", "async_filter"],
    ["windows", "queues", "known", "recent", "mainthread", "watch", "request_json", "basket"],
    ["fingerprinter", "seen"],
    ["sources"],
    ["advice", "settings", "migration"],
    ["filters"],
    ["engine", "writer", "takeover"],
    ["report"],
    ["crawled"],
    ["asking"],
    ["memory"],
    ["dupefilter"],
    ["middleware"],
    ["addon"],
    ["cli.tables"],
    ["cli.session"],
    ["cli.lookup", "cli.pending", "cli.transfer"],
    ["cli.target"],
    ["cli.migrate"],
    ["cli.command"],
    ["__init__", "cli.__init__"],
]
PURE = [name for row in ORDER[: ORDER.index(["pending", "counting"]) + 1] for name in row]


def imports(module: str) -> set[str]:
    """Return the full names of all modules that a module imports, wherever it does."""
    found = set()
    path = PACKAGE / f"{module.replace('.', '/')}.py"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def modules() -> list[str]:
    """Return the names of all modules, without the package's."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    return [".".join(path.parts) for path in paths]


def test_every_module_has_its_place() -> None:
    assert set(modules()) == {name for row in ORDER for name in row}


@pytest.mark.parametrize("level", range(len(ORDER)))
def test_imports_point_from_the_bottom_up(level: int) -> None:
    below = {name for row in ORDER[:level] for name in row}
    own = {name for row in ORDER for name in row}
    for module in ORDER[level]:
        prefix = "scrapy_bloom."
        ours = {name.removeprefix(prefix) for name in imports(module) if name.startswith(prefix)}
        assert ours & own <= below, f"{module} imports {ours & own - below}"


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_do_no_io(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(module)}
    assert not roots & {"redis", "scrapy", "twisted", "asyncio", "socket", "time", "logging", "os"}


def test_no_module_unpickles() -> None:
    for module in modules():
        assert not imports(module) & {"pickle", "marshal", "shelve"}


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("lua/*.lua")), ids=lambda path: path.stem)
def test_scripts_open_with_their_contract(path: Path) -> None:
    head = path.read_text().split("\nlocal ", 1)[0]
    assert head.startswith(f"-- {path.stem}: ")
    for part in ("KEYS[1]", "Reply", "Cost"):
        assert part in head
    used = set(re.findall(r"ARGV\[(\d)", path.read_text().removeprefix(head)))
    assert all(f"ARGV[{number}" in head for number in used)


def test_scripts_are_part_of_the_package() -> None:
    files = resources.files("scrapy_bloom").joinpath("lua").iterdir()
    names = {Path(str(file)).stem for file in files}
    assert names == {
        *("adopt", "audit", "beat", "claim", "contains", "count", "create", "discard", "drop"),
        *("fetch", "fill", "header", "install", "merge", "ones", "read", "release", "scan"),
        *("stage", "swap", "take"),
    }
    assert all(load(name).text for name in names)


def test_py_typed_is_shipped() -> None:
    assert (PACKAGE / "py.typed").exists()
