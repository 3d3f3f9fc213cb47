"""What a process takes of the memory, in bytes."""

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def memory() -> int:
    """Return the memory that this process takes now; without ``/proc``, the most it has taken."""
    return _status("VmRSS") or _most()


def peak_memory() -> int:
    """Return the most memory that this process has taken.

    On Linux ``ru_maxrss`` begins with what the parent had when it started the process.
    """
    return _status("VmHWM") or _most()


def _status(name: str) -> int | None:
    if not STATUS.exists():
        return None
    lines = (line.split() for line in STATUS.read_text(encoding="ascii").splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == f"{name}:")


def _most() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
