"""How often workers do what other workers do too.

All workers together load the server with about as much as a few do.
"""

#: Seconds between looks at the other workers while the crawl is idle, at least.
IDLE_SECONDS = 0.5
#: Such looks of all workers in a second, at most, unless each has to send a heartbeat more often.
IDLE_LOOKS_PER_SECOND = 40
#: Looks at all claims that all workers begin in a second, at most, unless each begins one a
#: heartbeat, or knows of free claims.
LOOKS_PER_SECOND = 10
#: Up to so many workers (one of them may be dead) look whenever they like.
FEW = 3
#: Entries of workers that all workers read in a second, at most, if the set of workers changes.
READ_PER_SECOND = 5_000
#: Seconds between looks at all claims: failed URLs may be due.
LOOK_SECONDS = 600.0
#: Seconds until the crawl is asked again whether it has room for more requests.
ROOM_SECONDS = 0.5


def idle_seconds(workers: int, heartbeat: float) -> float:
    """Return the seconds between two looks of an idle worker at the others."""
    return max(IDLE_SECONDS, min(heartbeat, workers / IDLE_LOOKS_PER_SECOND))


def look_seconds(workers: int, heartbeat: float) -> float:
    """Return how long a worker may wait that has a reason to look at all claims; it waits any time.

    Few need not wait: a crawl of few workers still ends, and takes over claims, within a second.
    """
    return 0.0 if workers <= FEW else min(heartbeat, 2 * workers / LOOKS_PER_SECOND)


def read_seconds(workers: int) -> float:
    """Return the seconds for which a worker uses the list of workers that it has read."""
    return min(LOOK_SECONDS, workers * workers / READ_PER_SECOND)
