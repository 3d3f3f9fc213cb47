"""How many examples hypothesis tries: a profile scales what a test asks for."""

import os
from typing import Any

import hypothesis

#: Profile -> examples of a test that does not say how many. Choose one by ``--hypothesis-profile``.
PROFILES = {"fast": 15, "short": 30, "all": 100, "nightly": 1_000}
FULL = PROFILES["all"]
#: Fewer examples than this show nothing.
LEAST = 8


def register_profiles() -> None:
    """Register all profiles and load the default one. In CI, examples are always the same."""
    in_ci = bool(os.environ.get("CI"))
    for name, number in PROFILES.items():
        hypothesis.settings.register_profile(
            name,
            max_examples=number,
            derandomize=in_ci and name != "nightly",
            deadline=None,  # never a timed assertion
        )
    hypothesis.settings.load_profile("short")


def examples(number: int, **options: Any) -> hypothesis.settings:
    """Return settings with so many examples under the profile "all", and fewer under faster ones.

    Args:
        number: of examples.
        options: further settings.
    """
    scaled = round(number * hypothesis.settings.default.max_examples / FULL)
    return hypothesis.settings(max_examples=max(scaled, min(number, LEAST)), **options)
