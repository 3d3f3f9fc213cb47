"""Check that the sdist has git's files, and that the wheel installs and runs in empty environments.

``make dist`` runs it. ``build`` makes the wheel from the sdist, and the wheel is used from an empty
directory, so that nothing of the checkout can stand in for a missing file.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Each page links to the same page twice. ``data:`` URLs need no network.
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
START, PAGE = '{"url": "data:,start"}\n', '{"url": "data:,page"}\n'
SETTINGS = ("DUPEFILTER_CLASS=scrapy_bloom.BloomDupeFilter", "BLOOM_REDIS_URL=embedded:data")


def main() -> None:
    """Check what is in the directory that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--lowest", nargs="+", default=[], help="versions for the first of them")
    options = parser.parse_args()
    (wheel,) = options.directory.resolve().glob("*.whl")
    (sdist,) = options.directory.glob("*.tar.gz")
    compare(sdist)
    for python in options.pythons:
        try_out(wheel, python, [])
    try_out(wheel, options.pythons[0], options.lowest)


def compare(sdist: Path) -> None:
    """Compare the files of the sdist with those that git tracks.

    Raises:
        SystemExit: they differ.
    """
    tracked = set(run(ROOT, "git", "ls-files", "-z").split("\0")) - {""}
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive.getmembers() if not member.isdir()]
    packed = {name.partition("/")[2] for name in names} - {"PKG-INFO"}
    if packed != tracked:
        lacking, extra = sorted(tracked - packed), sorted(packed - tracked)
        raise SystemExit(f"{sdist.name} lacks {lacking}, and has {extra}, which git doesn't track")
    print(f"{sdist.name} has the {len(tracked)} files that git tracks")


def try_out(wheel: Path, interpreter: str, versions: list[str]) -> None:
    """Install the wheel into an empty environment, and crawl twice.

    Args:
        wheel: the package.
        interpreter: a Python, by its name or path.
        versions: requirements besides the package's own.

    Raises:
        SystemExit: it doesn't install, or doesn't work.
    """
    with tempfile.TemporaryDirectory(prefix="check-dist-") as name:
        empty = Path(name)
        python, scrapy = str(empty / "env/bin/python"), str(empty / "env/bin/scrapy")
        run(empty, interpreter, "-m", "venv", "env")
        run(empty, python, "-m", "pip", "--quiet", "install", f"{wheel}[embedded]", *versions)
        run(empty, python, "-m", "pip", "check")
        run(empty, python, "-c", "from scrapy_bloom import *")
        (empty / "smoke.py").write_text(SPIDER)
        options = [option for setting in SETTINGS for option in ("--set", setting)]
        crawl = (scrapy, "runspider", "smoke.py", "--output", "-:jsonlines", *options)
        # The second crawl remembers the page.
        for expected in (START + PAGE, START):
            if (found := run(empty, *crawl)) != expected:
                raise SystemExit(f"expected {expected!r}, found {found!r}")
        run(empty, scrapy, "bloom", "info", "--key", "smoke:bloom", *options)
    print(f"{wheel.name} installs and runs with {interpreter} {' '.join(versions)}")


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


if __name__ == "__main__":
    main()
