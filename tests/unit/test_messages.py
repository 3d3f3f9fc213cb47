"""Each warning and each error of a crawl has a code, and each code its section on the page."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from support.paths import ROOT

import scrapy_bloom
from scrapy_bloom.bloom.errors import BloomError

PACKAGE = Path(scrapy_bloom.__file__).parent
PAGE = (ROOT / "docs" / "reference" / "messages.md").read_text("utf-8")
#: The codes on the page with the texts of their sections; those of errors come first.
SECTION = re.compile(r"(?ms)^### bloom-(\S+)\n(.*?)(?=^#|\Z)")
MESSAGES = SECTION.findall(PAGE)
CODES = [code for code, _ in MESSAGES]
ERRORS = [code for code, _ in SECTION.findall(re.split(r"(?m)^## ", PAGE)[1])]
#: Methods that log, whose format must have a code. Of ``log``, the format is the second argument.
LOGGING = {"warning": 0, "error": 0, "exception": 0, "critical": 0, "log": 1}
#: Functions whose first argument is a code.
CODED = {"tagged", "warn_once", "_advise", "_log_once"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
IN_TEXT = re.compile(r"\[bloom-([a-z-]+)\]$")


@cache
def calls() -> list[tuple[Path, Function, ast.Call, str]]:
    return [*_calls()]


def _calls() -> Iterator[tuple[Path, Function, ast.Call, str]]:
    """Yield all calls in the package: file, function around them, call and name."""
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, Function):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                        yield path, function, node, node.func.id
                    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                        yield path, function, node, node.func.attr


def is_logger(node: ast.Call) -> bool:
    """Whether a call is one of a logger's method."""
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id == "logger"


def has_code(function: Function, text: ast.expr) -> bool:
    """Whether a format has a code: it is made by ``tagged``, or is a literal that ends with one."""
    if isinstance(text, ast.Name):
        made = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == text.id
        ]
        return bool(made) and all(has_code(function, value) for value in made)
    if isinstance(text, ast.Constant):
        return bool(IN_TEXT.search(str(text.value)))
    return isinstance(text, ast.Call) and ast.unparse(text.func) == "tagged"


def codes_used() -> Iterator[tuple[str, str]]:
    """Yield the codes in the package, and where they are."""
    for path, _, node, name in calls():
        if name in CODED and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value), f"{path.name}:{node.lineno}"
        elif name in LOGGING and is_logger(node):
            for code in IN_TEXT.findall(str(getattr(node.args[0], "value", ""))):
                yield code, f"{path.name}:{node.lineno}"


def test_each_warning_and_error_has_a_code_which_is_a_literal_or_passed_on() -> None:
    for path, function, node, name in calls():
        if name in LOGGING and is_logger(node):
            assert has_code(function, node.args[LOGGING[name]]), f"{path.name}:{node.lineno}"
        elif name in CODED and not isinstance(node.args[0], ast.Constant):
            passed = ast.unparse(node.args[0])
            parameters = [argument.arg for argument in function.args.args]
            assert passed == "error.code" or passed in parameters, f"{path.name}:{node.lineno}"


def test_the_codes_of_the_page_are_those_that_are_used() -> None:
    unknown = [where for code, where in codes_used() if code not in CODES]
    assert unknown == []
    assert sorted(CODES) == sorted({*ERRORS, *(code for code, _ in codes_used())})


def errors(kind: type[BloomError]) -> Iterator[type[BloomError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from errors(below)


def test_each_class_of_errors_has_a_code() -> None:
    import_module("scrapy_bloom.cli.command")  # has an error of its own
    assert sorted(ERRORS) == sorted({kind.code for kind in errors(BloomError)})


def test_each_code_is_explained() -> None:
    said = r"[A-Z`].*\.\n"
    for code, text in MESSAGES:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
        assert re.fullmatch(rf"(?s)\n{said}\n- Cause: {said}- Remedy: {said}\n?", text), code
