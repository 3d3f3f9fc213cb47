"""What identifies a request: scrapy-redis's fingerprints, and what filters hold of others.

A request with a version (``meta["bloom_version"]``) is another item than its URL, and names it: the
fingerprint can be read back from the item, so claims and stored requests need no further field.
"""

import hashlib
import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.utils.python import to_unicode
from w3lib.url import canonicalize_url

#: Fingerprints of more bytes are hashed: each is kept with its request until that is crawled.
MAX_FINGERPRINT = 250
#: Items of requests with a version begin so; then so many bytes of the version's hash.
VERSIONED, HASH_BYTES = b"version:", 8
#: Bytes of a version in UTF-8, at most.
MAX_VERSION = 200

#: A window, and what its filter holds of a request: what is looked up, claimed and recorded.
Key = tuple[str, bytes]


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

    Also of one that begins as items with a version do, so that it is not taken for one.

    Raises:
        TypeError: a fingerprinter of the project's own returned something else than bytes.
    """
    if not isinstance(fingerprint, bytes):
        raise TypeError(f"a fingerprint is bytes, not {type(fingerprint).__name__}")
    if len(fingerprint) <= MAX_FINGERPRINT and not fingerprint.startswith(VERSIONED):
        return fingerprint
    return b"hashed:" + blake2b(fingerprint, digest_size=32).digest()


def version_of(meta: Mapping[str, Any]) -> bytes:
    """Return the version in a request's ``meta``; empty if there is none, or none that is valid."""
    version = meta.get("bloom_version")
    if not isinstance(version, str):
        return b""
    encoded = version.encode("utf-8", "surrogatepass")
    return encoded if len(encoded) <= MAX_VERSION else b""


def versioned(fingerprint: bytes, version: bytes) -> bytes:
    """Return what filters hold of a version of a request."""
    return VERSIONED + blake2b(version, digest_size=HASH_BYTES).digest() + fingerprint


def base_of(item: bytes) -> bytes | None:
    """Return the fingerprint in the item of a version; None if the item has no version."""
    return item[len(VERSIONED) + HASH_BYTES :] if item.startswith(VERSIONED) else None
