"""The shape of the package: what imports what, and what a script must say about itself."""

import ast
import re
from importlib import resources
from pathlib import Path

import pytest

import scrapy_bloom
from scrapy_bloom.core.scripts import load, on_full_server

PACKAGE = Path(scrapy_bloom.__file__).parent
#: From the bottom to the top: a module imports only modules in lines before its own.
ORDER = [
    line.split()
    for line in """
        errors
        core.sizing core.schedule
        core.hashing core.keys core.scripts
        core.header
        core.generations
        core.geometry
        core.ring
        core.state core.wanted core.calls
        core.values core.rings
        core.view
        core.membership core.info core.forecast
        core.pending core.counting core.measurement
        sets.estimate sets.together
        files.frames files.places
        files.archive
        files.saving files.installing
        files.loading
        sets.contents
        sets.combine
        sets.building
        sets.algebra
        clients.deadline clients.addresses clients.locks
        clients.embedded
        clients.connection
        clients.driver
        clients.async_driver
        base
        filter async_filter
        fingerprinter
        crawl.windows crawl.queues crawl.known crawl.recent crawl.mainthread crawl.watch
        crawl.request_values
        crawl.request_json crawl.workers
        crawl.advice crawl.settings
        crawl.filters
        crawl.writer crawl.takeover
        crawl.report crawl.flights
        crawl.crawled
        crawl.asking
        crawl.outputs
        crawl.engine
        crawl.memory
        dupefilter
        addon
        migration.lines migration.batches
        migration.seen
        migration.sources
        cli.tables
        cli.session
        cli.lookup cli.pending cli.transfer cli.delete
        cli.target cli.origin
        cli.migrate
        cli.command
    """.strip().splitlines()
]
#: Modules that do no I/O.
PURE = [name for row in ORDER for name in row if name.startswith(("core.", "sets."))] + [
    "errors",
    "files.frames",
    "files.archive",
    "files.saving",
    "files.installing",
    "files.loading",
    "migration.seen",
    "migration.lines",
]


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
    """Return the names of all modules, without the package's; packages are none."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    return [".".join(path.parts) for path in paths if path.stem != "__init__"]


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
        *("adopt", "allocate", "beat", "claim", "contains", "count", "create", "discard", "drop"),
        *("fetch", "fill", "header", "merge", "ones", "prelude_layers", "prelude_ring", "read"),
        *("release", "scan", "swap", "take", "walk"),
    }
    assert all(load(name).text for name in names)


def test_a_prelude_stands_before_a_script_that_needs_it() -> None:
    prelude, own = (
        (PACKAGE / "lua" / f"{name}.lua").read_text() for name in ("prelude_layers", "claim")
    )
    assert load("claim").text == prelude + own
    assert on_full_server(load("claim")).text == f"#!lua flags=allow-oom\n{prelude}{own}"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("lua/*.lua")), ids=lambda path: path.stem)
def test_scripts_name_the_prelude_whose_functions_they_call(path: Path) -> None:
    """In Lua, a name that nothing defines is an error only when it is called."""
    code = re.sub(r"--.*", "", load(path.stem).text)
    defined = set(re.findall(r"local function (\w+)", code))
    assert set(re.findall(r"(?<![\w.])(\w+)\(", code)) <= defined | {
        *("call", "function", "ipairs", "next", "tonumber", "type", "unpack", "has"),
    }


def test_py_typed_is_shipped() -> None:
    assert (PACKAGE / "py.typed").exists()
