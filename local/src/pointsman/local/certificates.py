"""The certificates and keys of one control plane: made anew for each, gone with its directory."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID: Final = datetime.timedelta(days=365)
_BACK: Final = datetime.timedelta(hours=1)  # a clock that was set back meanwhile


@dataclass(frozen=True)
class KeyPair:
    """PEM files of a certificate and its private key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority whose files lie in one directory. A second one there continues with the same key."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self.files = KeyPair(directory / "ca.crt", directory / "ca.key")
        if not self.files.certificate.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            self._write(self.files, key, self._certificate(key.public_key(), _name("pointsman-local"), key, None))
        self._key = serialization.load_pem_private_key(self.files.key.read_bytes(), None)
        self._name = x509.load_pem_x509_certificate(self.files.certificate.read_bytes()).subject

    def server(self, name: str, hosts: tuple[str, ...]) -> KeyPair:
        """A serving certificate for host names and IP addresses."""
        return self._issue(name, _name(name), hosts)

    def client(self, name: str, user: str, groups: tuple[str, ...] = ()) -> KeyPair:
        """A client certificate by which the API server knows ``user`` in ``groups``."""
        return self._issue(name, _name(user, groups), ())

    def signing_key(self, name: str) -> KeyPair:
        """A bare key pair (PEM public key in place of a certificate), as for service account tokens."""
        files = KeyPair(self._directory / f"{name}.pub", self._directory / f"{name}.key")
        if not files.key.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            files.certificate.write_bytes(
                key.public_key().public_bytes(
                    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                )
            )
            _write_key(files.key, key)
        return files

    def _issue(self, name: str, subject: x509.Name, hosts: tuple[str, ...]) -> KeyPair:
        files = KeyPair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        if not files.certificate.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            if not isinstance(self._key, ec.EllipticCurvePrivateKey):
                raise TypeError(f"{self.files.key} is not an elliptic-curve key")
            self._write(files, key, self._certificate(key.public_key(), subject, self._key, hosts))
        return files

    def _certificate(
        self,
        public: ec.EllipticCurvePublicKey,
        subject: x509.Name,
        issuer_key: ec.EllipticCurvePrivateKey,
        hosts: tuple[str, ...] | None,
    ) -> x509.Certificate:
        """Signed by ``issuer_key``; ``hosts`` None makes an authority, empty a client, others a server."""
        now = datetime.datetime.now(datetime.UTC)
        authority = hosts is None
        issuer = subject if authority else self._name
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACK)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            # Python 3.13 refuses certificates without these two (RFC 5280).
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
            .add_extension(_key_usage(authority), critical=True)
        )
        if not authority:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        return builder.sign(issuer_key, hashes.SHA256())

    @staticmethod
    def _write(files: KeyPair, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        _write_key(files.key, key)
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def _name(common_name: str, organizations: tuple[str, ...] = ()) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
