"""TLS options of an address (``ssl_...``): checks them before anything connects.

redis-py reads the files when it connects, and its errors then name neither option nor file.
"""

import inspect
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from scrapy_bloom.bloom.errors import ConfigurationError, shown, tls_reason

_OF_REDIS_PY = inspect.signature(redis.SSLConnection.__init__).parameters
#: Options that the installed redis-py has, in arguments and in a URL: those for OCSP need objects.
KNOWN = tuple(name for name in _OF_REDIS_PY if name.startswith("ssl_"))
IN_URL = tuple(name for name in KNOWN if "ocsp" not in name)
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
#: What an option's file has to be.
_CERTIFICATES = "give the path of a file with certificates in PEM format"
_KEY = "give the path of the private key of ssl_certfile, in PEM format"
_FILES = {"ssl_ca_certs": _CERTIFICATES, "ssl_certfile": _CERTIFICATES, "ssl_keyfile": _KEY}


def _load_directory(context: ssl.SSLContext, path: Any) -> None:
    if not Path(path).is_dir():
        raise NotADirectoryError
    context.load_verify_locations(capath=path)


def _check_certificate(_: ssl.SSLContext, file: Any) -> None:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)


def _set_flags(context: ssl.SSLContext, flags: Iterable[Any]) -> None:
    for flag in flags:
        context.verify_flags |= ssl.VerifyFlags(flag)


def _remove_flags(context: ssl.SSLContext, flags: Iterable[Any]) -> None:
    for flag in flags:
        context.verify_flags &= ~ssl.VerifyFlags(flag)


#: How an option is used, in this order, and what is wrong if OpenSSL refuses it.
_Step = tuple[str, Callable[[ssl.SSLContext, Any], object], str]
_NO_CERTIFICATE = f"which holds no certificate ({{reason}}): {_CERTIFICATES}"
_REFUSED = "which OpenSSL refuses: {reason}"
_STEPS: tuple[_Step, ...] = (
    ("ssl_ca_certs", lambda context, file: context.load_verify_locations(file), _NO_CERTIFICATE),
    ("ssl_ca_data", lambda context, it: context.load_verify_locations(cadata=it), _NO_CERTIFICATE),
    ("ssl_ca_path", _load_directory, "which is no directory: correct the path"),
    ("ssl_certfile", _check_certificate, _NO_CERTIFICATE),
    ("ssl_include_verify_flags", _set_flags, _REFUSED),
    ("ssl_exclude_verify_flags", _remove_flags, _REFUSED),
    ("ssl_min_version", lambda context, it: setattr(context, "minimum_version", it), _REFUSED),
    ("ssl_ciphers", ssl.SSLContext.set_ciphers, _REFUSED),
)


def is_option(name: object) -> bool:
    """Whether an argument of a client's is an option of TLS."""
    return str(name).startswith("ssl_")


def flag_of(given: object) -> bool | None:
    """Return what a text, or a flag, says; None if that is unknown."""
    return _FLAGS.get(str(given).lower())


def check_name(name: str, known: Sequence[str], source: str) -> None:
    """Refuse an argument that is unknown.

    Raises:
        ConfigurationError: lists the known ones.
    """
    if name not in known:
        raise ConfigurationError(f"{source} sets {name}: there are {', '.join(known)}")


def prepare(arguments: dict[str, Any], source_of: Callable[[str], str]) -> ssl.SSLContext | None:
    """Check the TLS options in a client's arguments.

    Args:
        arguments: of ``redis.Redis``; ``ssl_check_hostname`` is set in it.
        source_of: returns the setting that an argument comes from, for error messages.

    Returns:
        A context with these options; None for connections without TLS.

    Raises:
        ConfigurationError: names the option, its value and the remedy.
    """
    names = [*filter(is_option, arguments)]
    if not arguments.get("ssl"):
        if names:
            raise ConfigurationError(
                f"{source_of(names[0])} sets {', '.join(names)} for a connection without TLS: "
                "use rediss://"
            )
        return None
    for name in names:
        check_name(name, IN_URL if isinstance(arguments[name], str) else KNOWN, source_of(name))
    version = arguments.get("ssl_min_version")
    if isinstance(version, str) and version.isdecimal():
        arguments["ssl_min_version"] = int(version)  # redis-py 6 leaves it a text

    def wrong(name: str, problem: str) -> ConfigurationError:
        value = f" {shown(arguments[name], 300)}"
        # Where a path is expected, some give the text of the key.
        is_hidden = name in ("ssl_password", "ssl_ca_data") or "-----" in value
        return ConfigurationError(
            f"{source_of(name)} sets {name}{'' if is_hidden else value}, {problem}"
        )

    context = ssl.create_default_context()
    _set_checks(context, arguments, wrong)
    for name, remedy in _FILES.items():
        given = arguments.get(name)
        if given is not None and (problem := _problem_with(given)):
            raise wrong(name, f"{problem}: {remedy}")
    for name, use, problem in _STEPS:
        try:
            if value := arguments.get(name):  # as redis-py, which ignores an empty text
                use(context, value)
        except (OSError, ValueError, TypeError) as error:
            raise wrong(name, problem.format(reason=_says(error))) from None
    _load_key(context, arguments, wrong)
    return context


_Wrong = Callable[[str, str], ConfigurationError]


def _set_checks(context: ssl.SSLContext, arguments: dict[str, Any], wrong: _Wrong) -> None:
    """Say what of the server's certificate is checked, the host name unless it is told not to."""
    mode = arguments.get("ssl_cert_reqs", "required")
    try:
        if isinstance(mode, str | None):
            mode = ssl.VerifyMode[f"CERT_{'none' if mode is None else mode}".upper()]
        mode = ssl.VerifyMode(mode)
    except (KeyError, ValueError):
        remedy = "use required, optional or none"
        raise wrong("ssl_cert_reqs", f"which is unknown: {remedy}") from None
    name = "ssl_check_hostname"
    given = arguments.get(name)
    flag = mode != ssl.CERT_NONE if given is None else flag_of(given)
    if flag is None:
        raise wrong(name, "which is unknown: use true or false")
    if flag and mode == ssl.CERT_NONE:
        raise wrong(name, "and ssl_cert_reqs says not to check: remove one of them")
    arguments[name] = context.check_hostname = flag
    context.verify_mode = mode


def _load_key(context: ssl.SSLContext, arguments: Mapping[str, Any], wrong: _Wrong) -> None:
    """Load the client's own certificate with its key."""
    names = ("ssl_certfile", "ssl_keyfile", "ssl_password")
    certificate, key, password = map(arguments.get, names)
    if certificate is None:
        if key is not None:
            raise wrong("ssl_keyfile", "and no certificate: set ssl_certfile, too")
        return
    try:
        # Without any password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, "" if password is None else password)
    except (OSError, ValueError, TypeError) as error:
        raise wrong(
            "ssl_certfile" if key is None else "ssl_keyfile",
            f"from which its private key cannot be read ({_says(error)}): {_KEY}, and ssl_password "
            "if it is encrypted",
        ) from None


def _says(error: Exception) -> str:
    return tls_reason(error) or str(error)


def _problem_with(path: Any) -> str:
    """Return why a file cannot be read, or ""."""
    try:
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
