"""The shape of the package: what imports what, and what a script must say about itself."""

import ast
import re
from graphlib import TopologicalSorter
from importlib import resources
from pathlib import Path

import pytest
from support.paths import ROOT

import scrapy_bloom
from scrapy_bloom.bloom.protocol.scripts import (
    _CALL,
    _ON_FULL_SERVER,
    WRITES,
    commands_in,
    load,
)

PACKAGE = Path(scrapy_bloom.__file__).parent
TESTS = Path(__file__).parents[1]
#: Lines of a file of tests, at most; and those that are longer until they are split.
MAX_TEST_LINES = 400
TO_SPLIT = {
    "simulation/mutants.py",
    "simulation/world.py",
    "support/odd_site.py",
}
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
#: Packages, and modules, that do no I/O.
PURE = ("bloom.errors", "bloom.model", "bloom.options", "bloom.validators", "bloom.protocol")
PURE_EXTRAS = ("algebra", "bitmaps", "install", "save")
IO = {"redis", "scrapy", "twisted", "asyncio", "socket", "time", "logging", "os"}
#: Lines of a file, methods of a class, lines of a function, at most.
MAX_LINES, MAX_METHODS, MAX_FUNCTION = 400, 20, 50
#: Parameters of a constructor in ``crawl``, at most.
MAX_PARAMETERS = 7
#: Whose methods are the library's interface.
PUBLIC = {"BaseFilter", "FilterMethods", "BloomFilter", "AsyncBloomFilter"}


def imports(module: str) -> set[str]:
    """Return the full names of all modules that a module imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(source(module))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def modules() -> list[str]:
    """Return the names of all modules, without the package's; packages are none."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    return [".".join(path.parts) for path in paths if path.stem != "__init__"]


PACKAGES = [name for row in ORDER for name in row]


def package_of(module: str) -> str:
    """Return the package of a module: the longest name in ORDER that its own begins with."""
    return max(
        (name for name in PACKAGES if f"{module}.".startswith(f"{name}.")), key=len, default=""
    )


def ours(module: str) -> set[str]:
    """Return the modules of this package that a module imports."""
    prefix = "scrapy_bloom."
    found = {name.removeprefix(prefix) for name in imports(module) if name.startswith(prefix)}
    return found & set(modules())


def test_every_module_has_its_place() -> None:
    assert {package_of(module) for module in modules()} == set(PACKAGES)


@pytest.mark.parametrize("module", modules())
def test_packages_import_in_one_direction(module: str) -> None:
    own = package_of(module)
    level = next(number for number, row in enumerate(ORDER) if own in row)
    allowed = {own, *(name for row in ORDER[:level] for name in row)}
    wrong = [name for name in ours(module) if package_of(name) not in allowed]
    assert not wrong, f"{module} imports {wrong}"


def test_modules_import_each_other_in_no_circle() -> None:
    graph = {module: ours(module) for module in modules()}
    list(TopologicalSorter(graph).static_order())


def rows_of_crawl() -> list[list[str]]:
    """Return the files of ``crawl`` as docs/architecture.md has them, from top to bottom."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition("| file | what it is |\n|---|---|\n")[2].partition("\n\n")[0]
    return [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines()]


def test_files_of_a_crawl_import_down_the_list_only() -> None:
    rows = rows_of_crawl()
    place = {name: number for number, row in enumerate(rows) for name in row}
    own = {name.removeprefix("crawl.") for name in modules() if package_of(name) == "crawl"}
    assert place.keys() == own
    wrong = [
        f"{name} imports {other}"
        for name in own
        for other in (found.removeprefix("crawl.") for found in ours(f"crawl.{name}"))
        if place.get(other, len(rows)) <= place[name]
    ]
    assert not wrong


@pytest.mark.parametrize("module", [name for name in modules() if package_of(name) == "crawl"])
def test_constructors_of_a_crawl_take_few_parameters(module: str) -> None:
    for node in ast.walk(ast.parse(source(module))):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            taken = len(node.args.args) + len(node.args.kwonlyargs) - 1
            assert taken <= MAX_PARAMETERS, f"{module}: {node.lineno}"


@pytest.mark.parametrize(
    "module",
    [
        *(name for name in modules() if package_of(name) in PURE),
        *(f"bloom.extras.{name}" for name in PURE_EXTRAS),
    ],
)
def test_pure_modules_do_no_io(module: str) -> None:
    assert not {name.split(".")[0] for name in imports(module)} & IO


@pytest.mark.parametrize("module", [name for name in modules() if name.startswith("bloom.")])
def test_the_library_does_not_know_scrapy(module: str) -> None:
    assert "scrapy" not in {name.split(".")[0] for name in imports(module)}


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.glob("bloom/**/*.*")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_the_library_names_no_setting(path: Path) -> None:
    assert path.suffix == ".pyc" or "BLOOM_" not in path.read_text()


SCRIPTS = sorted(PACKAGE.glob("bloom/protocol/lua/*.lua"))


def source(module: str) -> str:
    return (PACKAGE / f"{module.replace('.', '/')}.py").read_text()


def trees() -> dict[str, ast.Module]:
    return {module: ast.parse(source(module)) for module in modules()}


def classes() -> list[tuple[str, ast.ClassDef]]:
    return [
        (module, node)
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def test_files_of_tests_are_short() -> None:
    long = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if path.read_text().count("\n") > MAX_TEST_LINES
    }
    assert long <= TO_SPLIT


def test_no_test_imports_from_another_test() -> None:
    """What several need is in tests/support."""
    for path in TESTS.rglob("*.py"):
        found = {
            name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
            if name and name.rpartition(".")[2].startswith(("test_", "conftest"))
        }
        assert not found, f"{path.name} imports {found}"


def test_files_are_short() -> None:
    assert [name for name in modules() if source(name).count("\n") > MAX_LINES] == []


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_classes_have_few_methods() -> None:
    counts = {
        node.name: sum(isinstance(part, FUNCTIONS) for part in node.body) for _, node in classes()
    }
    large = {name for name, count in counts.items() if count > MAX_METHODS}
    assert large <= PUBLIC


def test_functions_are_short() -> None:
    long = []
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                docstring = (ast.get_docstring(node) or "").count("\n")
                if (node.end_lineno or 0) - node.lineno - docstring >= MAX_FUNCTION:
                    long.append(f"{module}.{node.name}")
    assert long == []


def test_no_module_unpickles() -> None:
    for module in modules():
        assert not imports(module) & {"pickle", "marshal", "shelve"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_open_with_their_contract(path: Path) -> None:
    head = path.read_text().split("\nlocal ", 1)[0]
    assert head.startswith(f"-- {path.stem}: ")
    for part in ("KEYS[1]", "Reply", "Cost"):
        assert part in head
    used = set(re.findall(r"ARGV\[(\d)", path.read_text().removeprefix(head)))
    assert all(f"ARGV[{number}" in head for number in used)


def test_scripts_are_part_of_the_package() -> None:
    files = resources.files("scrapy_bloom.bloom.protocol").joinpath("lua").iterdir()
    names = {Path(str(file)).stem for file in files}
    assert all(load(name).text for name in names)
    assert names >= _ON_FULL_SERVER


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_name_the_commands_that_they_call(path: Path) -> None:
    """The rights that users need are read from these names."""
    code = re.sub(r"--.*", "", path.read_text())
    if path.stem != "prelude_writes":
        assert len(re.findall(r"(?:redis\.p|\b)call\(", code)) == len(_CALL.findall(code))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_that_write_test_their_rights(path: Path) -> None:
    text = load(path.stem).text
    is_prelude = path.stem.startswith("prelude_")
    assert ("acl_check_cmd" in text) >= bool(WRITES & {*commands_in(text).needed}) or is_prelude


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_name_the_prelude_whose_functions_they_call(path: Path) -> None:
    """In Lua, a name that nothing defines is an error only when it is called."""
    code = re.sub(r"--.*", "", load(path.stem).text)
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
