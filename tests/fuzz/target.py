"""What a target is: a parser, and what its inputs look like."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

#: Returns a changed input that is of the same format, as far as that goes.
Mutate = Callable[[bytes, Random], bytes]
#: A secret in seeds: no error and no label may show it.
SECRET = "hunter2"


@dataclass(frozen=True)
class Target:
    """A parser.

    Args:
        run: passes an input to the parser, and checks what it returns. Only errors that the parser
            does not document leave it.
        seeds: returns inputs to begin with: made by the product's own encoders, and hostile ones.
        mutate: changes an input.
        max_length: of an input.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    mutate: Mutate
    max_length: int = 20_000


def object_in(data: bytes | str) -> dict[str, Any]:
    """Return the JSON object that an input is; an empty one for any other input."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def texts_in(value: Any) -> dict[str, str]:
    """Return the members of a JSON object that are text."""
    members = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in members if isinstance(text, str)}
