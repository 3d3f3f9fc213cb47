"""Why a URL failed: stored in the place of its claim's nonce, which a failed URL does not need.

``HTTP 503`` is stored as ``!HTTP+503``: printable ASCII without spaces, like all parts of a claim
before the request. No nonce begins with the mark, so a nonce is not taken for a reason. Another
mark, ``~``, says that the URL is new to callers that find it before it is due (``claim.lua``).
"""

import re
from urllib.parse import quote_plus, unquote_plus

#: Characters of a stored reason at most, without the mark.
MAX_REASON = 200
_MARK, _VISIBLE = "!", "~"
_SAFE = "".join(map(chr, range(0x21, 0x7F))).translate({ord(c): None for c in "%+"})
#: An escape whose end is cut off.
_CUT = re.compile("%[0-9A-F]?$")


def encode(reason: str, *, hides: bool = True) -> str:
    """Return a reason as it is stored, shortened if it is long; "" for none.

    Args:
        reason: any text.
        hides: whether the URL stays hidden until it is due.
    """
    encoded = quote_plus(" ".join(reason.split()), safe=_SAFE, errors="replace")
    if len(encoded) > MAX_REASON:
        encoded = _CUT.sub("", encoded[:MAX_REASON])
    return encoded and f"{_MARK if hides else _VISIBLE}{encoded}"


def decode(nonce: str) -> str:
    """Return the reason in the place of a nonce, which may be any text; "" if there is none."""
    # Of a character whose bytes are cut off, nothing is left.
    return unquote_plus(nonce[1:], errors="ignore") if nonce.startswith((_MARK, _VISIBLE)) else ""
