"""Makes a failing run shorter: fewer steps, and only the faults that it needs."""

from support.clock import FrozenServer

from simulation.kinds import Kind
from simulation.run import Result, simulate


def shrink(server: FrozenServer, failed: Result, kind: Kind) -> Result:
    """Return a run of the same seed that fails too, with as few faults as are found."""
    best, steps = failed, kind.steps
    while steps > 10:
        result = simulate(server, failed.seed, kind, steps=steps // 2)
        if not result.violations:
            break
        best, steps = result, steps // 2
    without: set[int] = set()
    number = 0
    while number < len(best.struck):
        result = simulate(server, failed.seed, kind, without=without | {number}, steps=steps)
        if result.violations:
            best = result
            without.add(number)
        number += 1
    kept = [fault for number, fault in enumerate(best.struck) if number not in without]
    best.trace.append(f"needs {steps} steps, and of {len(failed.struck)} faults: {' '.join(kept)}")
    return best
