"""Where filters are saved to and loaded from: paths, and files that are open."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from scrapy_bloom.bloom.errors import ArchiveError, ConfigurationError, shown

#: A path, or a file that is open in binary mode.
PathOrFile = str | os.PathLike[str] | IO[bytes]


@contextmanager
def writing(file: PathOrFile) -> Iterator[IO[bytes]]:
    """Open a file to save to. It gets its name when it is whole; only its owner may read it.

    An open file is written to as it is, and so is a path of what is no regular file, as a pipe.

    Raises:
        ConfigurationError: it is neither a path nor a file.
        ArchiveError: it cannot be written.
    """
    if not isinstance(file, str | os.PathLike):
        yield _checked(file, "write")
        return
    with _explained("write", file):
        path = Path(file).resolve()  # of a link, what it points to is replaced
        is_regular = path.is_file() or not path.exists()
        opened = _open_temporary(path) if is_regular else path.open("wb")
    try:
        with opened as stream:
            yield stream
            with _explained("write", file):
                stream.flush()
                if is_regular:
                    os.fsync(stream.fileno())
                    Path(stream.name).replace(path)
    except BaseException:
        if is_regular:
            Path(opened.name).unlink(missing_ok=True)
        raise


@contextmanager
def reading(file: PathOrFile) -> Iterator[IO[bytes]]:
    """Open a file to load from.

    Raises:
        ConfigurationError: it is neither a path nor a file.
        ArchiveError: it cannot be read.
    """
    if not isinstance(file, str | os.PathLike):
        yield _checked(file, "read")
        return
    with _explained("read", file):
        opened = Path(file).open("rb")  # noqa: SIM115 - closed below
    with opened as stream:
        yield stream


def _checked(file: IO[bytes], method: str) -> IO[bytes]:
    if not hasattr(file, method):
        raise ConfigurationError(f"expected a path or a binary file; got {shown(file)}")
    return file


def _open_temporary(path: Path) -> IO[bytes]:
    prefix = f".{path.name[:100]}."
    return NamedTemporaryFile(prefix=prefix, suffix=".part", dir=path.parent, delete=False)


@contextmanager
def _explained(verb: str, path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise ArchiveError(f"cannot {verb} {os.fspath(path)!r}: {error}") from error
