"""pyreBloom-ng, a Bloom filter on Redis in C: built from its source, which pip cannot do any more.

Its setup.py asks for a pip of 2018. So: download the source, translate it with Cython, compile it.
That takes gcc, hiredis's header (Debian: libhiredis-dev) and Python's.
"""

import importlib
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORK = Path(__file__).parents[1] / ".scrapy" / "benchmarks" / "pyrebloom"
RELEASE = "pyreBloom-ng==0.0.2"
#: Modules of an old pip that its setup.py imports, for pip to be able to download it.
OLD_PIP = """\
import sys
import types
sys.modules["pip.req"] = types.SimpleNamespace(parse_requirements=lambda *_, **__: [])
sys.modules["pip.download"] = types.SimpleNamespace(PipSession=object)
"""


class NotBuiltError(Exception):
    """It could not be built, and why."""


def load() -> Any:
    """Return the module ``pyreBloom``, built if it was not yet.

    Raises:
        NotBuiltError: it could not be built.
    """
    if not (WORK / _file_name()).exists():
        build()
    sys.path.insert(0, str(WORK))
    try:
        return importlib.import_module("pyreBloom")
    except ImportError as error:
        raise NotBuiltError(str(error)) from error
    finally:
        sys.path.remove(str(WORK))


def build() -> None:
    """Download and compile it.

    Raises:
        NotBuiltError: something that it takes is missing.
    """
    old_pip = WORK / "old_pip"
    old_pip.mkdir(parents=True, exist_ok=True)
    (old_pip / "sitecustomize.py").write_text(OLD_PIP, encoding="utf-8")
    download = ("pip", "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation")
    _run([sys.executable, "-m", *download, "-d", str(WORK), RELEASE], PYTHONPATH=str(old_pip))
    with tarfile.open(next(WORK.glob("*.tar.gz"))) as archive:
        archive.extractall(WORK, filter="data")
    source = next(path for path in WORK.glob("pyreBloom*/pyreBloom") if path.is_dir())
    _run([sys.executable, "-m", "cython", "-2", str(source / "pyreBloom.pyx")])
    parts = [str(source / "pyreBloom.c"), str(source / "bloom.c"), "-lhiredis"]
    include = f"-I{sysconfig.get_paths()['include']}"
    options = ("-O2", "-shared", "-fPIC", "-w", include, "-o", str(WORK / _file_name()))
    _run(["gcc", *options, *parts])


def _file_name() -> str:
    return f"pyreBloom{sysconfig.get_config_var('EXT_SUFFIX')}"


def _run(command: Sequence[str], **environment: str) -> None:
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, **environment}
        )
    except FileNotFoundError as error:
        raise NotBuiltError(f"{command[0]} is missing") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line.lower()]
        # Without the directory, which is of this machine only.
        why = lines[-1].strip().replace(f"{WORK}/", "") if lines else "no reason given"
        raise NotBuiltError(f"{Path(command[0]).name} failed: {why}") from error
