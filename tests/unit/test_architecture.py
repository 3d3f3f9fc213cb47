"""The shape of the package: what imports what, and what a script must say about itself."""

import ast
import re
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from importlib import resources
from pathlib import Path

import pytest
from support.paths import ROOT, TESTS

import scrapy_bloom
from scrapy_bloom.bloom.protocol.scripts import _CALL, _ON_FULL_SERVER, WRITES, commands_in, load

PACKAGE = Path(scrapy_bloom.__file__).parent
#: Lines of a file of tests, at most; and those that are longer until they are split.
MAX_TEST_LINES = 400
TO_SPLIT = {"simulation/mutants.py", "simulation/world.py", "support/odd_site.py"}
#: From the bottom to the top: what a package may import is in lines before its own. A package is a
#: directory without the directories in it; a file of the top directory stands for itself.
ORDER = [
    line.split()
    for line in """
        bloom.errors
        bloom.model
        bloom.validators
        bloom.options
        bloom.protocol
        bloom.client bloom.extras
        bloom
        recrawl_rules
        settings fingerprinter
        sitemaps
        crawl
        dupefilter migrate
        addon cli
    """.strip().splitlines()
]
PACKAGES = [name for row in ORDER for name in row]
#: Packages, and modules, that do no I/O.
PURE = ("bloom.errors", "bloom.model", "bloom.options", "bloom.validators", "bloom.protocol")
PURE_EXTRAS = {f"bloom.extras.{name}" for name in ("algebra", "bitmaps", "install", "save")}
IO = {"redis", "scrapy", "twisted", "asyncio", "socket", "time", "logging", "os"}
#: Lines of a file, methods of a class, lines of a function, at most.
MAX_LINES, MAX_METHODS, MAX_FUNCTION = 400, 20, 50
#: Parameters of a constructor in ``crawl``, at most.
MAX_PARAMETERS = 7
#: Whose methods are the library's interface.
PUBLIC = {"BaseFilter", "FilterMethods", "BloomFilter", "AsyncBloomFilter"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


#: The names of all modules, without the package's; packages are none.
SOURCES = {
    name_of(path): path.read_text() for path in PACKAGE.rglob("*.py") if path.stem != "__init__"
}
TREES = {module: ast.parse(source) for module, source in SOURCES.items()}


def imports(tree: ast.Module) -> set[str]:
    """Return the full names of all modules that a module imports, wherever it does."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


IMPORTS = {module: imports(tree) for module, tree in TREES.items()}
#: The modules of this package that a module imports.
OURS = {
    module: {name.removeprefix("scrapy_bloom.") for name in names} & SOURCES.keys()
    for module, names in IMPORTS.items()
}


def package_of(module: str) -> str:
    """Return the package of a module: the longest name in ORDER that its own begins with."""
    return max(
        (name for name in PACKAGES if f"{module}.".startswith(f"{name}.")), key=len, default=""
    )


def upward(modules: Iterable[str], rows: list[list[str]], prefix: str = "") -> list[str]:
    """Return the imports of modules that are not of rows before their own, or of their package."""
    level = {name: number for number, row in enumerate(rows) for name in row}
    wrong = []
    for module in modules:
        own = package_of(module) if not prefix else module.removeprefix(prefix)
        for other in OURS[module]:
            its = package_of(other) if not prefix else other.removeprefix(prefix)
            if its != own and level.get(its, -1) >= level[own]:
                wrong.append(f"{module} imports {other}")
    return wrong


def test_packages_import_in_one_direction_and_modules_in_no_circle() -> None:
    assert {package_of(module) for module in SOURCES} == set(PACKAGES)
    assert upward(SOURCES, ORDER) == []
    list(TopologicalSorter(OURS).static_order())


def test_files_of_a_crawl_import_down_the_list_of_the_page_only() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition("| file | what it is |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in reversed(table.splitlines())]
    own = [name for name in SOURCES if package_of(name) == "crawl"]
    assert sorted(name for row in rows for name in row) == sorted(
        name.removeprefix("crawl.") for name in own
    )
    assert upward(own, rows, "crawl.") == []


def test_the_library_does_not_know_scrapy_and_the_pure_part_of_it_does_no_io() -> None:
    for module, names in IMPORTS.items():
        roots = {name.split(".")[0] for name in names}
        if module.startswith("bloom."):
            assert "scrapy" not in roots, module
            assert "BLOOM_" not in SOURCES[module], module
        if package_of(module) in PURE or module in PURE_EXTRAS:
            assert not roots & IO, module
        assert not roots & {"pickle", "marshal", "shelve"}, module


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for module, tree in TREES.items():
        yield from ((module, node) for node in ast.walk(tree) if isinstance(node, kinds))


def test_files_classes_functions_and_constructors_are_short() -> None:
    assert [name for name, text in SOURCES.items() if text.count("\n") > MAX_LINES] == []
    for module, node in nodes(ast.ClassDef, *FUNCTIONS):
        if isinstance(node, ast.ClassDef):
            count = sum(isinstance(part, FUNCTIONS) for part in node.body)
            assert count <= MAX_METHODS or node.name in PUBLIC, f"{module}.{node.name}"
        elif isinstance(node, FUNCTIONS):
            docstring = (ast.get_docstring(node) or "").count("\n")
            length = (node.end_lineno or 0) - node.lineno - docstring
            assert length < MAX_FUNCTION, f"{module}.{node.name}"
            taken = len(node.args.args) + len(node.args.kwonlyargs) - 1
            is_constructor = node.name == "__init__" and package_of(module) == "crawl"
            assert not is_constructor or taken <= MAX_PARAMETERS, f"{module}: {node.lineno}"


def test_files_of_tests_are_short_and_import_from_no_other_test() -> None:
    """What several need is in tests/support."""
    texts = {path.relative_to(TESTS).as_posix(): path.read_text() for path in TESTS.rglob("*.py")}
    assert {name for name, text in texts.items() if text.count("\n") > MAX_TEST_LINES} <= TO_SPLIT
    other_test = re.compile(
        r"^ *(from|import) (\w+\.)*(test_|conftest)|^ *from .* import test_", re.MULTILINE
    )
    assert [name for name, text in texts.items() if other_test.search(text)] == []


# -- scripts --

SCRIPTS = sorted(PACKAGE.glob("bloom/protocol/lua/*.lua"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_open_with_their_contract_and_name_what_they_call(path: Path) -> None:
    text = path.read_text()
    head = text.split("\nlocal ", 1)[0]
    assert head.startswith(f"-- {path.stem}: ")
    for part in ("KEYS[1]", "Reply", "Cost"):
        assert part in head
    used = set(re.findall(r"ARGV\[(\d)", text.removeprefix(head)))
    assert all(f"ARGV[{number}" in head for number in used)
    assert "BLOOM_" not in text
    # The rights that users need are read from the names of commands.
    code = re.sub(r"--.*", "", text)
    if path.stem != "prelude_writes":
        assert len(re.findall(r"(?:redis\.p|\b)call\(", code)) == len(_CALL.findall(code))


def test_scripts_are_part_of_the_package() -> None:
    files = resources.files("scrapy_bloom.bloom.protocol").joinpath("lua").iterdir()
    names = {Path(str(file)).stem for file in files}
    assert all(load(name).text for name in names)
    assert names >= _ON_FULL_SERVER


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_have_the_preludes_that_they_need(path: Path) -> None:
    """For their rights; and in Lua, a name that nothing defines is an error when it is called."""
    text = load(path.stem).text
    is_prelude = path.stem.startswith("prelude_")
    assert ("acl_check_cmd" in text) >= bool(WRITES & {*commands_in(text).needed}) or is_prelude
    code = re.sub(r"--.*", "", text)
    defined = set(re.findall(r"local function (\w+)", code))
    assert set(re.findall(r"(?<![\w.])(\w+)\(", code)) <= defined | {
        *("call", "function", "ipairs", "next", "pcall", "setmetatable"),
        *("tonumber", "tostring", "type", "unpack", "check", "error", "has"),
    }


def test_the_page_on_architecture_names_what_there_is() -> None:
    """Its tables: all packages from the bottom to the top, and files of the package."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    sections = r"^## (?:Packages|Inside a crawl|Where do .*)$"
    _, packages, _, places = re.split(sections, text, flags=re.MULTILINE)
    firsts = re.findall(r"^\| (`.+?) \|", packages, re.MULTILINE)
    named = [name for first in firsts for name in re.findall(r"`(.+?)`", first)]
    assert named == PACKAGES
    files = re.findall(r"`((?:[\w-]+/)*\w+\.(?:py|lua))`", places)
    assert len(files) > 20
    names = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.*")}
    assert [name for name in files if not any(f"/{n}".endswith(f"/{name}") for n in names)] == []
