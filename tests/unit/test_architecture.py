"""The shape of the package: what imports what, how large a part may be, what a script must say."""

import ast
import re
from graphlib import TopologicalSorter
from importlib import resources
from pathlib import Path

import pytest
from support.pages import read

import scrapy_bloom

PACKAGE = Path(scrapy_bloom.__file__).parent
#: From the bottom to the top: a part imports only what's in lines before its own, or itself.
ORDER = [
    "bloom.errors",
    "bloom.model",
    "bloom.protocol",
    "bloom.client",
    "bloom.extras",
    "bloom",
    "rules",
    "kinds",
    "settings",
    "crawl",
    "dupefilter migrate",
    "addon cli",
]
#: The files of a crawl, from the top to the bottom, as the page lists them.
_, _, LISTED = read("docs/architecture.md").partition("| `crawl/` | one crawl |")
CRAWL = re.findall(r"`(\w+)\.py`", LISTED.partition("\n\n")[0])
#: What does no I/O.
PURE = ("bloom.model", "bloom.protocol", "bloom.errors", "bloom.info", "rules", "crawl.rule")
IO = {"redis", "scrapy", "twisted", "asyncio", "socket", "time", "logging", "os"}
#: Lines of a file of code and of a function, and parameters of a constructor, at most.
MAX_LINES, MAX_FUNCTION, MAX_PARAMETERS = 350, 40, 8

SOURCES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text("utf-8")
    for path in PACKAGE.rglob("*.py")
    if path.stem != "__init__"
}
TREES = {module: ast.parse(source) for module, source in SOURCES.items()}
LUA = sorted(resources.files("scrapy_bloom.bloom.protocol").joinpath("lua").iterdir(), key=str)


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


def part_of(module: str) -> int:
    """Return the line of ORDER that a module belongs to."""
    found = [
        (len(name), number)
        for number, line in enumerate(ORDER)
        for name in line.split()
        if f"{module}.".startswith(f"{name}.")
    ]
    assert found, f"{module} isn't in ORDER"
    return max(found)[1]


def test_parts_import_in_one_direction_and_modules_in_no_circle() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in OURS.items()
        for other in others
        if part_of(other) > part_of(module)
    ]
    assert wrong == []
    list(TopologicalSorter(OURS).static_order())


def test_the_files_of_a_crawl_import_down_their_list_only() -> None:
    own = {module for module in SOURCES if module.startswith("crawl.")}
    assert own == {f"crawl.{name}" for name in CRAWL}
    level = {f"crawl.{name}": number for number, name in enumerate(CRAWL)}
    wrong = [
        f"{module} imports {other}"
        for module in own
        for other in OURS[module] & own
        if level[other] <= level[module]
    ]
    assert wrong == []


@pytest.mark.parametrize("part", PURE)
def test_what_decides_does_no_io(part: str) -> None:
    own = [module for module in SOURCES if f"{module}.".startswith(f"{part}.")]
    assert own
    wrong = {module: {name.partition(".")[0] for name in IMPORTS[module]} & IO for module in own}
    assert not any(wrong.values()), wrong


def test_the_library_knows_nothing_of_scrapy() -> None:
    for module in SOURCES:
        if module.startswith("bloom."):
            assert not any(name.startswith("scrapy.") for name in IMPORTS[module]), module


def code_lines(node: ast.AST, source: str) -> int:
    """Return the lines of a part of a file without blank lines, comments and docstrings."""
    docs: set[int] = set()
    for one in ast.walk(node):
        body = getattr(one, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs |= set(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    lines = source.splitlines()
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", len(lines))
    return sum(
        number not in docs and bool(re.match(r"\s*[^\s#]", lines[number - 1]))
        for number in range(first, last + 1)
    )


def test_files_functions_and_constructors_are_small() -> None:
    large = []
    for module, tree in TREES.items():
        if code_lines(tree, SOURCES[module]) > MAX_LINES:
            large.append(module)
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if code_lines(node, SOURCES[module]) > MAX_FUNCTION:
                large.append(f"{module}.{node.name}")
            parameters = len(node.args.args) + len(node.args.kwonlyargs) - 1
            if node.name == "__init__" and parameters > MAX_PARAMETERS:
                large.append(f"{module}.__init__ takes {parameters}")
    assert large == []


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.name)
def test_each_script_says_what_its_keys_arguments_and_reply_are(path: Path) -> None:
    head = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("--"):
            break
        head.append(line)
    text = "\n".join(head)
    assert text.startswith(f"-- {path.stem}: ")
    assert "Reply" in text or path.stem == "counters"
    assert "KEYS" in text or path.stem in ("ring", "server", "counters")


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.name)
def test_each_script_names_the_arguments_that_it_uses_by_name(path: Path) -> None:
    text = path.read_text("utf-8")
    named = re.findall(r"^-- ARGV\.(\w+)", text, re.MULTILINE)
    code = re.sub("--.*", "", text)
    assert sorted(named) == sorted(set(re.findall(r"ARGV\.(\w+)", code)))


def test_nothing_swallows_the_cancellation_of_a_task() -> None:
    """Before Python 3.12, ``wait_for`` may, and then a second Ctrl-C would not end the process."""
    assert [module for module, source in SOURCES.items() if "wait_for(" in source] == []
