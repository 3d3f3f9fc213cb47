"""How often servers have carried out scripts."""

from typing import Any


def script_calls(client: Any) -> int:
    """Return how many calls of scripts a server has carried out."""
    stats = client.info("commandstats")
    return sum(about["calls"] for name, about in stats.items() if "_eval" in name)
