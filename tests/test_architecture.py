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
    ["sizing", "schedule"],
    ["hashing", "keys", "scripts"],
    ["header"],
    ["ring"],
    ["state", "wanted", "calls"],
    ["values", "view"],
    ["membership", "info"],
    ["addresses", "locks"],
    ["embedded"],
    ["connection"],
    ["driver"],
    ["filter"],
    ["windows", "advice"],
    ["settings"],
    ["filters"],
    ["report"],
    ["dupefilter"],
    ["addon"],
    ["__init__"],
]
PURE = [name for row in ORDER[: ORDER.index(["membership", "info"]) + 1] for name in row]


def imports(module: str) -> set[str]:
    """Return the full names of all modules that a module imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def test_every_module_has_its_place() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {name for row in ORDER for name in row}


@pytest.mark.parametrize("level", range(len(ORDER)))
def test_imports_point_from_the_bottom_up(level: int) -> None:
    below = {name for row in ORDER[:level] for name in row}
    own = {name for row in ORDER for name in row}
    for module in ORDER[level]:
        ours = {
            parts[1]
            for name in imports(module)
            if (parts := name.split("."))[0] == "scrapy_bloom" and len(parts) > 1
        }
        assert ours & own <= below, f"{module} imports {ours & own - below}"


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_do_no_io(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(module)}
    assert not roots & {"redis", "scrapy", "twisted", "asyncio", "socket", "time", "logging", "os"}


def test_no_module_unpickles() -> None:
    for path in PACKAGE.glob("*.py"):
        assert not imports(path.stem) & {"pickle", "marshal", "shelve"}


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
    assert names == {"claim", "contains", "create", "header", "read", "swap"}
    assert all(load(name).text for name in names)


def test_py_typed_is_shipped() -> None:
    assert (PACKAGE / "py.typed").exists()
