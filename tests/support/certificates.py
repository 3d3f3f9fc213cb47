"""Certificates for tests of TLS, and a server that presents them."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.servers import Server, free_port

DAY = timedelta(days=1)
#: What no key may be used for.
_USAGES = (
    *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("crl_sign", "encipher_only", "decipher_only"),
)


class Issued(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates.

    Args:
        directory: for its files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._key = directory, ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"authority {secrets.token_hex(4)}")
        self.file = directory / "authority.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self.file.write_bytes(self._sign(self._name, self._key, constraints))

    def issue(self, name: str, *, address: str = "127.0.0.1", days: int = 1) -> Issued:
        """Return a new certificate.

        Args:
            name: of the files.
            address: that the certificate is for.
            days: until it expires.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
        issued = Issued(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        issued.certificate.write_bytes(self._sign(_name(name), key, hosts, days))
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        issued.key.write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
        return issued

    def _sign(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extension: x509.ExtensionType,
        days: int = 1,
    ) -> bytes:
        now, own = datetime.now(UTC), self._key.public_key()
        is_authority = name == self._name
        # Python 3.13 and later insist on the identifiers, and on the usage.
        usage = x509.KeyUsage(
            **dict.fromkeys(_USAGES, False),
            digital_signature=not is_authority,
            key_cert_sign=is_authority,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(extension, critical=is_authority)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), False)
        )
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


class TLSServer:
    """A server with a port for TLS, which requires no client certificate: Debian's Redis.

    Args:
        directory: for certificates.
        options: further command-line options of the server.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        binary = shutil.which("redis-server")
        if not binary:
            pytest.skip("no redis-server")
        self.authority = Authority(directory)
        self.issued = self.authority.issue("server")
        self.client = self.authority.issue("client")
        self.port = free_port()
        self.server = Server(
            binary,
            *("--tls-port", str(self.port), "--tls-auth-clients", "no"),
            *("--tls-ca-cert-file", str(self.authority.file)),
            *("--tls-cert-file", str(self.issued.certificate)),
            *("--tls-key-file", str(self.issued.key)),
            *options,
        )

    def url(self, port: int = 0, *, trusting: bool = True, **options: object) -> str:
        """Return the address, with options of TLS."""
        if trusting:
            options = {"ssl_ca_certs": self.authority.file, **options}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"rediss://127.0.0.1:{port or self.port}/0?{query}"

    @contextmanager
    def presenting(self, issued: Issued) -> Iterator[None]:
        """Let it present another certificate."""
        for one in (issued, self.issued):
            files = ("tls-cert-file", one.certificate, "tls-key-file", one.key)
            self._configure(*map(str, files))
            if one is issued:
                yield

    @contextmanager
    def requiring(self) -> Iterator[None]:
        """Let it require a client certificate of its authority."""
        self._configure("tls-auth-clients", "yes")
        yield
        self._configure("tls-auth-clients", "no")

    def _configure(self, *words: str) -> None:
        with self.server.client() as client:
            client.execute_command("CONFIG", "SET", *words)
