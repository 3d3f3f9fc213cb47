"""TLS options of an address (``ssl_...``): checks them before anything connects.

redis-py reads the files when it connects, and its errors then name neither option nor file.
"""

import inspect
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from scrapy_bloom.bloom.errors import ConfigurationError, shown, tls_reason

#: Options that a text can give: those for OCSP need objects.
_TEXTS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_ca_data",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_check_hostname",
    "ssl_cert_reqs",
    "ssl_min_version",
    "ssl_ciphers",
    "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
)
_OF_REDIS_PY = inspect.signature(redis.SSLConnection.__init__).parameters
#: Options that the installed redis-py has, in a URL and in arguments.
IN_URL = tuple(name for name in _TEXTS if name in _OF_REDIS_PY)
KNOWN = (*IN_URL, *(n for n in _OF_REDIS_PY if n.startswith("ssl_") and n not in _TEXTS))
_CERT_REQS = {
    None: ssl.CERT_NONE,
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
#: What an option's file has to be.
_CERTIFICATES = "give the path of a file with certificates in PEM format"
_KEY = "give the path of the private key of ssl_certfile, in PEM format"


class AsyncTLSConnection(redis.asyncio.SSLConnection):
    """A connection with a context of ours: redis-py's own ignores some of the options."""

    def __init__(self, *, tls_context: ssl.SSLContext, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ssl_context.context = tls_context


def is_option(name: object) -> bool:
    """Whether an argument of a client's is an option of TLS."""
    return str(name).startswith("ssl_")


def check_names(names: tuple[str, ...], known: tuple[str, ...], source: str) -> None:
    """Refuse options that are unknown.

    Raises:
        ConfigurationError: lists the known ones.
    """
    if unknown := sorted(set(names) - set(known)):
        raise ConfigurationError(
            f"{source} sets {', '.join(unknown)}: the options of TLS are {', '.join(known)}"
        )


def prepare(arguments: dict[str, Any], source_of: Callable[[str], str]) -> ssl.SSLContext | None:
    """Check the TLS options in a client's arguments, and make them mean the same in any redis-py.

    Host names are checked unless ``ssl_check_hostname`` says otherwise: before 6.0, redis-py's
    default was not to.

    Args:
        arguments: of ``redis.Redis``; ``ssl_check_hostname`` is set in it.
        source_of: returns the setting that an argument comes from, for error messages.

    Returns:
        A context with these options; None for connections without TLS.

    Raises:
        ConfigurationError: names the option, its value and the remedy.
    """
    names = tuple(filter(is_option, arguments))
    if not arguments.get("ssl"):
        if names:
            raise ConfigurationError(
                f"{source_of(names[0])} sets {', '.join(names)} for a connection without TLS: "
                "use rediss://"
            )
        return None
    for name in names:
        check_names((name,), KNOWN, source_of(name))
    version = arguments.get("ssl_min_version")
    if isinstance(version, str) and version.isdecimal():
        arguments["ssl_min_version"] = int(version)  # redis-py 6 leaves it a text
    options = _Options(arguments, source_of)
    mode = options.verify_mode()
    arguments["ssl_check_hostname"] = options.check_hostname(mode)
    context = ssl.create_default_context()
    context.check_hostname = arguments["ssl_check_hostname"]
    context.verify_mode = mode
    options.load_authorities(context)
    options.load_certificate(context)
    options.set_others(context)
    return context


class _Options:
    """The options of one address."""

    def __init__(self, arguments: Mapping[str, Any], source_of: Callable[[str], str]) -> None:
        self._arguments, self._source_of = arguments, source_of

    def _wrong(self, name: str, problem: str) -> ConfigurationError:
        value = f" {shown(self._arguments[name], 300)}"
        # Where a path is expected, some give the text of the key.
        hidden = name in ("ssl_password", "ssl_ca_data") or "-----" in value
        return ConfigurationError(
            f"{self._source_of(name)} sets {name}{'' if hidden else value}, {problem}"
        )

    def verify_mode(self) -> ssl.VerifyMode:
        mode = self._arguments.get("ssl_cert_reqs", "required")
        try:
            return _CERT_REQS[mode] if mode in _CERT_REQS else ssl.VerifyMode(mode)
        except (TypeError, ValueError):
            raise self._wrong(
                "ssl_cert_reqs", "which is unknown: use required, optional or none"
            ) from None

    def check_hostname(self, mode: ssl.VerifyMode) -> bool:
        given = self._arguments.get("ssl_check_hostname")
        flag = FLAGS.get(str(given).lower()) if given is not None else mode != ssl.CERT_NONE
        if flag is None:
            raise self._wrong("ssl_check_hostname", "which is unknown: use true or false")
        if flag and mode == ssl.CERT_NONE:
            raise self._wrong(
                "ssl_check_hostname", "and ssl_cert_reqs says not to check: remove one of them"
            )
        return flag

    def load_authorities(self, context: ssl.SSLContext) -> None:
        """Load the certificates of the authorities that may sign the server's."""
        if file := self._path("ssl_ca_certs", _CERTIFICATES):
            self._load_certificates(context, "ssl_ca_certs", cafile=file)
        if data := self._arguments.get("ssl_ca_data"):
            self._load_certificates(context, "ssl_ca_data", cadata=data)
        if directory := self._arguments.get("ssl_ca_path"):
            if not _is_directory(directory):
                raise self._wrong("ssl_ca_path", "which is no directory: correct the path")
            context.load_verify_locations(capath=directory)

    def _load_certificates(self, context: ssl.SSLContext, name: str, **where: Any) -> None:
        try:
            context.load_verify_locations(**where)
        except (OSError, ValueError, TypeError) as error:
            raise self._wrong(
                name, f"which holds no certificate ({_says(error)}): {_CERTIFICATES}"
            ) from None

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Load the client's own certificate and its key."""
        certificate = self._path("ssl_certfile", _CERTIFICATES)
        key = self._path("ssl_keyfile", _KEY)
        if certificate is None:
            if key is not None:
                raise self._wrong("ssl_keyfile", "and no certificate: set ssl_certfile, too")
            return
        self._load_certificates(
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "ssl_certfile", cafile=certificate
        )
        # Without any password, OpenSSL would ask for one on the terminal.
        password = self._arguments.get("ssl_password")
        name = "ssl_certfile" if key is None else "ssl_keyfile"
        try:
            context.load_cert_chain(certificate, key, "" if password is None else password)
        except (OSError, ValueError, TypeError) as error:
            reason = _says(error)
            if "mismatch" in reason:
                problem = f"which is the key of another certificate ({reason}): {_KEY}"
            elif password is None:
                problem = (
                    f"from which no private key can be read ({reason}): {_KEY}, and ssl_password "
                    "if it is encrypted"
                )
            else:
                problem = (
                    f"from which ssl_password reads no private key ({reason}): correct one of them"
                )
            raise self._wrong(name, problem) from None

    def set_others(self, context: ssl.SSLContext) -> None:
        """Set the lowest version, ciphers and flags."""
        try:
            for name in ("ssl_include_verify_flags", "ssl_exclude_verify_flags"):
                for flag in self._arguments.get(name) or ():
                    bits = ssl.VerifyFlags(flag)
                    flags = context.verify_flags
                    context.verify_flags = flags | bits if "include" in name else flags & ~bits
            name = "ssl_min_version"
            if (version := self._arguments.get(name)) is not None:
                context.minimum_version = version
            name = "ssl_ciphers"
            if ciphers := self._arguments.get(name):
                context.set_ciphers(ciphers)
        except (OSError, ValueError, TypeError) as error:
            raise self._wrong(name, f"which OpenSSL refuses: {_says(error)}") from None

    def _path(self, name: str, remedy: str) -> str | None:
        """Return the path of a file that can be read; None if there is none."""
        given = self._arguments.get(name)
        if given is None:
            return None
        if problem := _problem_with(given):
            raise self._wrong(name, f"{problem}: {remedy}")
        return str(given)


def _says(error: Exception) -> str:
    return tls_reason(error) or str(error)


def _problem_with(path: Any) -> str:
    """Return why a file cannot be read, or ""."""
    try:
        if Path(path).is_dir():
            return "which is a directory"
        if Path(path).exists() and not Path(path).is_file():
            return "which is no regular file"
        with Path(path).open("rb") as file:
            file.read(1)
    except FileNotFoundError:
        return "which does not exist"
    except OSError as error:
        return f"which cannot be read ({error.strerror})"
    except (TypeError, ValueError):
        return "which is no path"
    return ""


def _is_directory(path: Any) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, TypeError, ValueError):
        return False
