"""How often workers send what other workers send too: the more of them, the less often each.

So all workers together load the server with about as much as a few do, and a crawl of a few workers
still ends, and takes over claims, within a second.
"""

#: Seconds between looks at the other workers while the crawl is idle, at least.
IDLE_SECONDS = 0.5
#: Such looks of all workers in a second, at most, unless each has to send a heartbeat more often.
IDLE_LOOKS_PER_SECOND = 40
#: Seconds between the looks at all claims of any two workers, of many.
LOOK_PAUSE_SECONDS = 1.0
#: Up to so many workers (one of them may be dead) look whenever they like; so many more are many.
FEW, MANY = 3, 20
#: Entries of workers that all workers read in a second, at most, if the set of workers changes.
READ_PER_SECOND = 5_000
#: Seconds between looks at all claims: failed URLs may be due.
LOOK_SECONDS = 600.0


def idle_seconds(workers: int, heartbeat: float) -> float:
    """Return the seconds between two looks of an idle worker at the others."""
    return max(IDLE_SECONDS, min(heartbeat, workers / IDLE_LOOKS_PER_SECOND))


def retry_seconds(workers: int, heartbeat: float, pause: float) -> float:
    """Return the seconds until a worker asks again whether it is its turn to look at all claims."""
    return max(pause, min(heartbeat, workers / IDLE_LOOKS_PER_SECOND))


def pause_seconds(workers: int, *, is_urgent: bool) -> float:
    """Return the seconds between the looks at all claims of any two workers.

    Idle workers share what there is; one that has something to do leaves it to another.
    """
    pause = LOOK_PAUSE_SECONDS * min(1.0, max(0, workers - FEW) / MANY)
    return pause if is_urgent else 10 * pause


def read_seconds(workers: int) -> float:
    """Return the seconds for which a worker uses the list of workers that it has read."""
    return min(LOOK_SECONDS, workers * workers / READ_PER_SECOND)
