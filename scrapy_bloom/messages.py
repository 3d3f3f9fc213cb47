"""The codes of log messages: docs/reference/messages.md has what each means, its causes and remedy.

Codes stay when texts change.
"""


def tagged(code: str, text: str) -> str:
    """Return a message with its code: ``the filter is full [bloom-full]``."""
    return f"{text} [bloom-{code}]"
