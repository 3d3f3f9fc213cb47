"""Every exception that scrapy-bloom raises on purpose, and what to do about redis-py's."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class BloomError(Exception):
    """Base of all errors of this package."""


class ConfigurationError(BloomError, ValueError):
    """A setting or an argument is wrong; the message names it, its value and the remedy."""


class FilterMismatchError(BloomError):
    """The stored filter differs from the given options."""


class ArchiveError(BloomError):
    """A file is not a saved filter, is damaged or too large, or cannot be read or written."""


class SaturatedError(BloomError):
    """A filter is too full to estimate from its bits how many items it holds."""


class StorageError(BloomError):
    """Redis cannot do this: it is down, read-only, full, or refuses the password."""


class ServerFullError(StorageError):
    """Redis is out of memory and refuses commands that need more."""


class NotReadyError(StorageError):
    """Redis did not answer in time, or is loading its data: it may answer later."""


class RestartedError(StorageError):
    """The server is another process than before, and may have lost its last writes."""


#: What remedies name: where the credentials are given, what to do without a server, what a user
#: needs, and what to do about a key that holds something else. Callers that have other names for
#: parameters add these: "capacity" -> the name of their setting.
WORDS = {
    "credentials": "in the arguments of the client",
    "start": "start a server there or pass a client of another one",
    "rights": "the filter's keys and the commands it needs",
    "other_key": "a key of the filter: choose another `key`",
}
#: A parameter in a message.
_PARAMETER = re.compile(r"`(\w+)`")
#: The start of a server that the package starts itself.
_START_EMBEDDED = "start the crawl again, and see server.log in its directory"
_OUT_OF_MEMORY = r"^OutOfMemoryError|OOM command not allowed"
_LOADING, _LATE = r"^BusyLoadingError|LOADING", r"^TimeoutError|timed out"
#: Pattern of an error's class and text -> the problem and its remedy; the first match counts.
_REMEDIES = (
    (r"without any password|no password is set", "has no password set: remove it {credentials}"),
    (r"NOAUTH|Authentication required", "requires a password: give it {credentials}"),
    (
        r"^AuthenticationError|WRONGPASS|invalid password",
        "refuses the user name or the password: correct them {credentials}",
    ),
    (
        # In a script, Redis 7 and Valkey have other texts for it.
        r"^NoPermissionError|NOPERM|can't run this command|ACL failure|can't access at least one",
        "does not let this user do that: grant it {rights}",
    ),
    (
        r"^ReadOnlyError|READONLY",
        "is a read-only replica: use the address of its primary (after a failover, the new one)",
    ),
    (
        _OUT_OF_MEMORY,
        "is out of memory: raise its maxmemory, or give the filter a server of its own",
    ),
    (_LOADING, "is still loading its data: wait, then try again"),
    (
        r"MISCONF",
        "refuses to write because it cannot save to its disk: see its log, then free the disk",
    ),
    (r"^MasterDownError|MASTERDOWN", "has lost its primary: use the primary's address"),
    (r"WRONGTYPE", "answers WRONGTYPE: it holds something else under {other_key}"),
    (
        r"NOREPLICAS",
        "refuses to write because too few of its replicas are connected: repair them",
    ),
    (r"DB index is out of range", "has no database of that number: correct the db in the address"),
    (r"BUSY ", "is busy with a long script: wait, or end it with SCRIPT KILL"),
    (
        # redis-py 5 has no classes of its own for these.
        r"^(Moved|Ask|ClusterDown|ClusterCrossSlot)Error|: (MOVED|ASK|CLUSTERDOWN|CROSSSLOT)\b",
        "is a node of a cluster that cannot serve this: use a client for clusters, or repair it",
    ),
    (
        # Of redis-py's pools: ConnectionPool, and BlockingConnectionPool after its time-out.
        r"^MaxConnectionsError|Too many connections|No connection available",
        "was not queried: all connections of the pool are in use; raise its max_connections",
    ),
    (r"max number of clients", "has no connection left: raise its maxclients"),
    (
        r"Name or service|name resolution|nodename nor|getaddrinfo|No address associated",
        "has a host name that cannot be resolved: correct it, or {start}",
    ),
    (r"refused|No such file|unreachable|No route", "is not there: {start}"),
    (_LATE, "did not answer in time: see whether it is up, or {start}"),
    (r"CERTIFICATE|SSL", "cannot be reached over TLS: check rediss:// and the ssl_* options"),
    (r"^NotConnectedError", "is not connected: nothing was sent, and no connection was attempted"),
    (
        r"^InvalidResponse|^ProtocolError|Protocol error",
        "is not a Redis server, or a proxy in between is not: correct the address",
    ),
    (
        r"^UnicodeDecodeError",
        "has no text under {other_key}, or use a client without decode_responses to see which",
    ),
    (r"^ConnectionError|^Connection\w+Error", "closed the connection: see its log"),
)


#: Errors that callers handle differently.
_KINDS = {_OUT_OF_MEMORY: ServerFullError, _LOADING: NotReadyError, _LATE: NotReadyError}
#: The server quotes the arguments of a command that it does not know, AUTH's too.
_ARGUMENTS = r",? with args beginning"


def explain(error: Exception, label: str, words: Mapping[str, str] = WORDS) -> StorageError:
    """Return an error that says what to do about an error of redis-py's.

    Args:
        error: what the client raised, a ``redis.RedisError`` or an ``OSError``.
        label: the server's address, without credentials.
        words: what remedies name, as in ``WORDS``.
    """
    text = f"{type(error).__name__}: {error}"
    if label.startswith("embedded:"):
        words = {**words, "start": _START_EMBEDDED}
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, text):
            kind = _KINDS.get(pattern, StorageError)
            return kind(in_words(f"{label} {remedy.format_map(words)}", words))
    return StorageError(f"{label} answers {re.split(_ARGUMENTS, text)[0]}")


def in_words(text: str, words: Mapping[str, str]) -> str:
    """Return a text with its parameters, in backticks, replaced by the caller's names."""
    return _PARAMETER.sub(lambda match: words.get(match[1], match[0]), text)


def reword(error: BloomError, words: Mapping[str, str]) -> None:
    """Change an error's text as ``in_words`` does."""
    error.args = (in_words(str(error), words),)


@contextmanager
def rewording(words: Mapping[str, str]) -> Iterator[None]:
    """Change the texts of errors that are raised in a ``with`` block, as ``in_words`` does."""
    try:
        yield
    except BloomError as error:
        reword(error, words)
        raise


def showable(error: Exception) -> Exception | None:
    """Return an error as a cause that a traceback may show; None if a password may be in it."""
    return None if re.search(_ARGUMENTS, str(error)) else error


def short(error: Exception) -> str:
    """Return the beginning of an error's text, which may hold what a site has sent."""
    return f"{error!s:.500}"


def shown(value: object, length: int = 100) -> str:
    """Return the beginning of a value's repr, for a message."""
    try:
        return f"{value!r:.{length}}"
    except Exception:  # any repr may fail; that of an int beyond 4,300 digits does
        return f"something of type {type(value).__name__}"
