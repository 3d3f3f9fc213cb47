"""Every exception that scrapy-bloom raises on purpose, and what to do about redis-py's."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar


def tagged(code: str, text: str) -> str:
    """Return a message with its code: ``the filter is full [bloom-full]``.

    docs/reference/messages.md has what each means. Codes stay when texts change.
    """
    return f"{text} [bloom-{code}]"


class BloomError(Exception):
    """Base of all errors of this package.

    Attributes:
        code: what it is, in a word: docs/reference/messages.md has its causes and remedies.
    """

    code: ClassVar[str] = "error"


class ConfigurationError(BloomError, ValueError):
    """A setting or an argument is wrong; the message names it, its value and the remedy."""

    code = "configuration"


class FilterMismatchError(BloomError):
    """The stored filter differs from the given options."""

    code = "mismatch"


class ArchiveError(BloomError):
    """A file is not a saved filter, is damaged or too large, or cannot be read or written."""

    code = "archive"


class SaturatedError(BloomError):
    """A filter is too full to estimate from its bits how many items it holds."""

    code = "saturated"


class StorageError(BloomError):
    """Redis cannot do this: it is down, read-only, full, or refuses the password.

    Attributes:
        slots: of a cluster, the hash slots that cannot be used; empty for all of them.
        replies: of a cluster, what has come of the replies to the last calls, None for each that
            has not; empty if nothing has.
        verdicts: of an operation on items, their verdicts as far as they are known.
    """

    code = "storage"
    slots: frozenset[int] = frozenset()
    replies: Sequence[Any] = ()
    verdicts: str = ""


def slots_of(error: BloomError) -> frozenset[int]:
    """Return the hash slots that an error is about; none if it is about the whole server."""
    return error.slots if isinstance(error, StorageError) else frozenset()


class ServerFullError(StorageError):
    """Redis is out of memory and refuses commands that need more."""

    code = "server-full"


class RightsError(StorageError):
    """The user lacks rights on the server; the message names commands and keys."""

    code = "rights"


class NotReadyError(StorageError):
    """Redis did not answer in time, or is loading its data: it may answer later."""

    code = "not-ready"


class RestartedError(StorageError):
    """The server is another process than before, and may have lost its last writes."""

    code = "restarted"


#: What remedies name: where the credentials are given, what to do without a server, what a user
#: needs, and what to do about a key that holds something else. Callers that have other names for
#: parameters add these: "capacity" -> the name of their setting.
WORDS = {
    "credentials": "in the arguments of the client",
    "start": "start a server there or pass a client of another one",
    "rights": "the filter's keys and the commands it needs (docs/acl.md)",
    "user": "this user",
    "server": "the server",
    "other_key": "a key of the filter: choose another `key`",
    "to_forget": 'open it once with on_difference="replace"',
}
#: A parameter in a message.
_PARAMETER = re.compile(r"`(\w+)`")
#: The start of a server that the package starts itself.
_START_EMBEDDED = "start the crawl again, and see server.log in its directory"
_OUT_OF_MEMORY = r"^OutOfMemoryError|OOM command not allowed"
_NO_PRIMARY = r"^NoPrimaryError: (?P<problem>cannot be reached now: .*)"
_LOADING, _LATE = r"^BusyLoadingError|LOADING", r"^TimeoutError|timed out"
#: Of a cluster that has lost a node.
_CLUSTER_DOWN = r"^ClusterDownError|: CLUSTERDOWN\b"
#: In a script, Redis 7 and Valkey have other texts for it.
_NO_RIGHTS = (
    r"^NoPermissionError|NOPERM|can't run this command|ACL failure|can't access at least one"
)
_NEWER = "use Redis 7.0 or later, or Valkey 8 or later"
#: A server that expects TLS may send an alert of TLS's, whose first byte is 0x15.
_TLS_ALERT = r"^(InvalidResponse|ProtocolError|ConnectionError).*\\x15"
#: What remedies add, by the form of the address: with the wrong one, servers wait for more or close
#: the connection.
_HINTS = {
    "rediss": {
        "if_late": " and expects TLS on this port",
        "if_closed": ", and if it requires a client certificate, set ssl_certfile and ssl_keyfile",
    },
    "redis": {"if_late": "", "if_closed": ", and if it expects TLS, use rediss://"},
}
_NO_HINT = {"if_late": "", "if_closed": ""}
#: The text of an error of the module ssl: "[SSL: CODE] text (_ssl.c:1006)".
_OPENSSL = re.compile(r"\[(?:SSL|X509|PEM|ASN1)[^]]*\] (.*?)(?: \(_ssl\.c:\d+\)|$)")
#: Pattern of what OpenSSL says, as in ``_REMEDIES``; the text follows in parentheses.
_TLS_REMEDIES = (
    (
        r"verify failed: (self.signed|unable to)",
        (
            "has a certificate that no known authority has signed ({reason}): "
            "set ssl_ca_certs to the file of its authority's certificate"
        ),
    ),
    (
        r"verify failed: certificate (has expired|is not yet valid)",
        (
            "has a certificate that is not valid now ({reason}): "
            "renew it, or correct the clock of this machine"
        ),
    ),
    (
        r"verify failed: (Hostname|IP address) mismatch",
        (
            "has a certificate for another host name ({reason}): "
            "use the name in its certificate, or set ssl_check_hostname=false"
        ),
    ),
    (
        r"alert (certificate required|bad certificate|unknown ca|certificate (expired|unknown))",
        "requires a client certificate that it trusts ({reason}): set ssl_certfile and ssl_keyfile",
    ),
    (
        r"wrong version number|record layer failure|http request",
        "does not use TLS on this port ({reason}): use its port for TLS, or redis://",
    ),
    (r"", "cannot be reached over TLS ({reason}): check rediss:// and the ssl_* options"),
)
#: Pattern of an error's class and text -> the problem and its remedy; the first match counts.
_REMEDIES = (
    (_NO_PRIMARY, "{problem}"),
    (
        r"^NoPrimaryError: (?P<problem>cannot be found: .*)",
        "{problem} (correct the address of the sentinels, or the name of the service)",
    ),
    (r"without any password|no password is set", "has no password set: remove it {credentials}"),
    (r"NOAUTH|Authentication required", "requires a password: give it {credentials}"),
    (
        r"^AuthenticationError|WRONGPASS|invalid password",
        "refuses the user name or the password: correct them {credentials}",
    ),
    (_NO_RIGHTS, "does not let this user do that ({said}): grant {rights}"),
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
    (r"NOREPLICAS", "refuses to write because too few of its replicas are connected: repair them"),
    (
        r"DB index is out of range|SELECT is not allowed in cluster mode",
        "has no database of that number: correct the db in the address",
    ),
    (r"BUSY ", "is busy with a long script: wait, or end it with SCRIPT KILL"),
    (
        _CLUSTER_DOWN,
        "is a node of a cluster that is down: wait until a replica has taken over, or repair it",
    ),
    (
        r"^TryAgainError",
        "is moving a slot of the filter to another node: wait until that has ended",
    ),
    (
        r"^(Moved|Ask|ClusterCrossSlot)Error|: (MOVED|ASK|CROSSSLOT)\b",
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
    (
        r"refused|Connect call failed|No such file|unreachable|No route",
        "is not there: check host and port, or {start}",
    ),
    (r"^NotTLSError", "does not use TLS on this port: use its port for TLS, or redis://"),
    (
        r"luster mode is not enabled|cluster support disabled",
        "is a single server, and no cluster: use redis:// (rediss:// with TLS), without +cluster",
    ),
    (_LATE, "did not answer in time: see whether it is up{if_late}, or {start}"),
    (r"^NotConnectedError", "is not connected: nothing was sent, and no connection was attempted"),
    (r"OLDSERVER (?P<version>[\d.]+)", f"is Redis {{version}}: {_NEWER}"),
    # A script with flags, where INFO is forbidden: Redis 6 does not know them.
    (r"Error compiling script.*near '#'", f"is older than Redis 7.0: {_NEWER}"),
    (r"unknown command '?`?SENTINEL", "has no command SENTINEL: it is a server, and no sentinel"),
    (
        r"unknown command '?`?(?P<command>\w+)",
        (
            "has no command {command}: the filter needs it, and is made of Lua scripts (EVALSHA, "
            "EVAL); use another server, or another plan of the service"
        ),
    ),
    (_TLS_ALERT, "expects TLS on this port: use rediss://"),
    (
        r"^InvalidResponse|^ProtocolError|Protocol error",
        "is not a Redis server, or a proxy in between is not: correct the address",
    ),
    (
        r"^UnicodeDecodeError",
        "has no text under {other_key}, or use a client without decode_responses to see which",
    ),
    (r"^ConnectionError|^Connection\w+Error", "closed the connection: see its log{if_closed}"),
)


#: Errors that callers handle differently.
_KINDS = {
    _OUT_OF_MEMORY: ServerFullError,
    _NO_RIGHTS: RightsError,
    **dict.fromkeys((_LOADING, _LATE, _NO_PRIMARY, _CLUSTER_DOWN), NotReadyError),
}
#: What a server adds to an error in a script.
_IN_SCRIPT = re.compile(r" script: .*")
#: The server quotes the arguments of a command that it does not know, AUTH's too.
_ARGUMENTS = r",? with args beginning"


def explain(error: Exception, label: str, words: Mapping[str, str] = WORDS) -> StorageError:
    """Return an error that says what to do about an error of redis-py's.

    Args:
        error: what the client raised, a ``redis.RedisError`` or an ``OSError``.
        label: the server's address, without credentials.
        words: what remedies name, as in ``WORDS``.
    """
    text = _text_of(error)
    if label.startswith("embedded:"):
        words = {**words, "start": _START_EMBEDDED}
    scheme = re.search(r"\b(rediss?)(\+\w+)?://", label)
    hints = _HINTS[scheme[1]] if scheme else _NO_HINT
    reason = tls_reason(error)
    for pattern, remedy in _TLS_REMEDIES if reason else _REMEDIES:
        if match := re.search(pattern, reason or text):
            kind = _KINDS.get(pattern, StorageError)
            found = {"reason": reason, "said": _IN_SCRIPT.sub("", str(error))}
            advice = remedy.format_map({**words, **hints, **match.groupdict(), **found})
            return kind(in_words(f"{label} {advice}", words))
    return StorageError(f"{label} answers {re.split(_ARGUMENTS, text)[0]}")


def is_of_rights(error: Exception) -> bool:
    """Whether a server's refusal, or an error that explains it, says that a user lacks rights."""
    return isinstance(error, RightsError) or bool(re.search(_NO_RIGHTS, _text_of(error)))


def tls_reason(error: Exception) -> str:
    """Return what OpenSSL says in an error; "" if it is none of OpenSSL's.

    Connections that were closed do not count: that happens without TLS, too.
    """
    match = _OPENSSL.search(_text_of(error))
    return "" if match is None or "EOF" in match[1] else match[1].rstrip(".")


def _text_of(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    cause = error.__cause__ or error.__context__
    # redis-py's asyncio client shows only the number of an error.
    is_short = isinstance(cause, OSError) and " connecting to " in text
    return f"{text} {cause}" if is_short else text


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
