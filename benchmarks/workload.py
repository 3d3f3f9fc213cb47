"""What the benchmarks of the library itself share: items, and what a server did for them."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import redis

#: Commands that scripts are called by; the others are called inside scripts.
SCRIPTS = ("evalsha", "eval")


def items(numbers: Iterable[int]) -> list[bytes]:
    """Return items as long as a fingerprint: the SHA-1 of each number."""
    return [hashlib.sha1(number.to_bytes(8, "big")).digest() for number in numbers]


def server_cpu(client: redis.Redis) -> float:
    """Return the seconds of CPU that a server has used, all it does included."""
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


@dataclass(frozen=True)
class Work:
    """What a server has done since it was started.

    Args:
        calls: per command, how often it was called, also by scripts.
        script_us: microseconds it spent in scripts.
    """

    calls: Counter[str]
    script_us: int

    @classmethod
    def of(cls, client: redis.Redis) -> "Work":
        """Ask the server."""
        stats = {
            name.removeprefix("cmdstat_"): values
            for name, values in client.info("commandstats").items()
        }
        calls = Counter({name: int(values["calls"]) for name, values in stats.items()})
        return cls(calls, sum(int(stats[name]["usec"]) for name in SCRIPTS if name in stats))

    def since(self, before: "Work") -> "Work":
        """Return what was done since ``before``."""
        return Work(self.calls - before.calls, self.script_us - before.script_us)
