"""What identifies a request: scrapy-redis's fingerprints, and what filters hold of long ones."""

import hashlib
import json
from hashlib import blake2b
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.utils.python import to_unicode
from w3lib.url import canonicalize_url

#: Fingerprints of more bytes are hashed: each is kept with its request until that is crawled.
MAX_FINGERPRINT = 250


class ScrapyRedisFingerprinter:
    """Fingerprints of scrapy-redis (0.8 to 0.9.1), so that what its SET holds is seen.

    ``REQUEST_FINGERPRINTER_CLASS = "scrapy_bloom.ScrapyRedisFingerprinter"``, for the whole life of
    a filter that ``scrapy bloom migrate --from-set`` has filled. They differ from Scrapy's: the
    SHA-1 of the method, the canonical URL and the body as JSON, without headers; the meta key
    ``verbatim_url`` counts for nothing.
    """

    def __init__(self) -> None:
        # Needed more than once per request; computing it takes as long as making the request.
        self._known: WeakKeyDictionary[Request, bytes] = WeakKeyDictionary()

    def fingerprint(self, request: Request) -> bytes:
        """Return the 20 bytes of which scrapy-redis stores the 40 hexadecimal digits."""
        known = self._known.get(request)
        if known is None:
            data = {
                "body": (request.body or b"").hex(),
                "method": to_unicode(request.method),
                "url": canonicalize_url(request.url),
            }
            text = json.dumps(data, sort_keys=True)
            known = hashlib.sha1(text.encode()).digest()  # noqa: S324 - it is their choice
            self._known[request] = known
        return known


def bounded(fingerprint: bytes) -> bytes:
    """Return what filters hold of a request: its fingerprint, or a hash of a long one.

    Raises:
        TypeError: a fingerprinter of the project's own returned something else than bytes.
    """
    if not isinstance(fingerprint, bytes):
        raise TypeError(f"a fingerprint is bytes, not {type(fingerprint).__name__}")
    if len(fingerprint) <= MAX_FINGERPRINT:
        return fingerprint
    return b"hashed:" + blake2b(fingerprint, digest_size=32).digest()
