"""Keys and certificates of a consortium: a private authority, the server's certificate, and a key pair per site."""

import ipaddress
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsmall.ends import fingerprint
from fedsmall.sealing.envelopes import name_of

NIST_CURVES = ("secp256r1", "secp384r1", "secp521r1")
STATION = "station:"  # begins the comment of a site's public key, with the identity of its envelopes
SOON = 30  # days before an expiry that everybody whom it concerns is warned
LOOPBACK = ("localhost", "127.0.0.1")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read; raises FileExistsError rather than overwrite a key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def new_authority(folder: Path, name: str, days: int) -> None:
    """Make a private certificate authority: ``folder/ca.key`` (0600) and ``folder/ca.crt``."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _common_name(f"fedsmall consortium {name}")
    extensions = [x509.SubjectKeyIdentifier.from_public_key(key.public_key())]
    _write_signed(folder / "ca", key, _builder(subject, subject, key, days, extensions, is_authority=True), key)


def new_server_certificate(authority: Path, folder: Path, hosts: Sequence[str], days: int) -> None:
    """Make ``folder/server.key`` (0600) and ``server.crt`` anew, for ``hosts`` and the loopback."""
    ca_key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not the elliptic-curve key that `consortium init` makes")
    key, issuer = ec.generate_private_key(ec.SECP384R1()), load_certificate(authority / "ca.crt").subject
    names = [general_name(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    extensions = [
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName(names),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
    ]
    (folder / "server.key").unlink(missing_ok=True)
    builder = _builder(_common_name("fedsmall server"), issuer, key, days, extensions, is_authority=False)
    _write_signed(folder / "server", key, builder, ca_key)


def new_identity(path: Path) -> None:
    """Make the identity (a file, 0600) that signs a site's envelopes; FileExistsError where there is one."""
    write_private(path, secrets.token_bytes(32))


def tell_identity(public: Path, identity: Path) -> None:
    """Write the public half of an identity into the file of a site's public key, as the comment of its line."""
    words = public.read_bytes().split()[:2]
    public.write_bytes(b" ".join([*words, f"{STATION}{name_of(identity.read_bytes())}".encode()]) + b"\n")


def read_identity(public: Path) -> str | None:
    """The identity in the file of a site's public key, 64 hexadecimal digits; None where there is none."""
    words = public.read_text(errors="replace").split()[2:]
    identities = [word.removeprefix(STATION) for word in words if word.startswith(STATION)]
    return identities[0] if identities and re.fullmatch("[0-9a-f]{64}", identities[0]) else None


def new_site_key(path: Path) -> str:
    """Make the key pair ``path`` (0600) and ``path.pub``; returns the fingerprint. FileExistsError for a second."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_private(path, private)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")
    return fingerprint(public)


def read_public_key(path: Path) -> bytes:
    """A site's public key as one OpenSSH line; raises ValueError for anything else, a private key above all."""
    text = path.read_bytes()
    if b"PRIVATE" in text:
        raise ValueError("this is a private key; it must never leave the site. Send the file that ends in .pub")
    try:
        key = serialization.load_ssh_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("not an OpenSSH public key; `fedsmall site keygen` makes one (the .pub file)") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in NIST_CURVES:
        raise ValueError(f"a site's key is on one of the NIST curves {', '.join(NIST_CURVES)}; this one is not")
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def authority_words(path: Path) -> str:
    """Whose certificate lies in a kit or a consortium's folder, for two people to compare before anything is sent."""
    return f"This consortium's authority is SHA256:{load_certificate(path).fingerprint(hashes.SHA256()).hex(':')}"


def load_certificate(path: Path) -> x509.Certificate:
    """A certificate from its PEM file."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def certificate_hosts(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a server certificate is good for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def check_host(certificate: x509.Certificate, host: str) -> None:
    """Raise ValueError unless the certificate is good for ``host``: else every site would fail with a TLS riddle."""
    hosts = certificate_hosts(certificate)
    if host not in hosts:
        good = f"the server's certificate is good for {', '.join(hosts)}, but sites dial {host}"
        raise ValueError(f"{good}; run `fedsmall consortium renew --host {host}`")


def days_left(certificate: x509.Certificate, now: datetime | None = None) -> int:
    """Whole days until the certificate expires; negative when it has."""
    return (certificate.not_valid_after_utc - (now or datetime.now(UTC))).days


def warnings(days: Mapping[str, int]) -> list[str]:
    """A line for whatever has expired or does within a month; ``days`` are those that are left, by what it is."""
    soon = {what: left for what, left in days.items() if left <= SOON}
    return [f"{what} " + (f"expires in {left} days" if left >= 0 else "has expired") for what, left in soon.items()]


def general_name(host: str) -> x509.GeneralName:
    """A host as a subject alternative name: an address where it is one, else a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    extensions: Sequence[x509.ExtensionType],
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    uses = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    uses |= dict.fromkeys(("encipher_only", "decipher_only"), False)
    uses |= dict.fromkeys(("key_cert_sign", "crl_sign"), is_authority)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks in hospitals differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(x509.KeyUsage(not is_authority, **uses), critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder


def _write_signed(
    path: Path, key: ec.EllipticCurvePrivateKey, builder: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey
) -> None:
    certificate, form = builder.sign(signer, hashes.SHA384()), serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    write_private(path.with_name(f"{path.name}.key"), private)
    path.with_name(f"{path.name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
