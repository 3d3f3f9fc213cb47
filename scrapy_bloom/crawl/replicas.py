"""How long pages wait for replicas before they are recorded. Pure values."""

from scrapy_bloom.bloom.protocol.replication import Acknowledged, Wait

#: Milliseconds of a wait after one that was too short: replicas that are gone do not hold up
#: writes, and those that are back are noticed.
RETRY_MILLISECONDS = 20


class Replicas:
    """Decides how long to wait.

    Args:
        wanted: replicas of each primary that have to acknowledge; 0 for no waiting.
        seconds: the longest wait.
    """

    def __init__(self, wanted: int = 0, seconds: float = 0) -> None:
        self.wanted = wanted
        self._milliseconds = max(1, int(seconds * 1_000))
        self._is_missing = False

    def next_wait(self) -> Wait | None:
        """Return how to wait now; None for not at all."""
        if not self.wanted:
            return None
        longest = self._milliseconds
        return Wait(self.wanted, min(longest, RETRY_MILLISECONDS) if self._is_missing else longest)

    def has_enough(self, acknowledged: Acknowledged) -> bool:
        """Whether so many replicas are enough."""
        return acknowledged.replicas >= self.wanted

    def note(self, acknowledged: Acknowledged) -> None:
        """Note the outcome of a wait."""
        self._is_missing = not self.has_enough(acknowledged)
