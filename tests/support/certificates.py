"""Certificates for tests: an authority of their own, which nobody trusts, and what it certifies."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Private = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def write_certificate(folder: Path, key: Private | None = None, *, days: int = 30) -> tuple[Path, Path]:
    """The PEM files of a chain of certificates to sign images with, and of its key. `days` below 0: it is too old."""
    authority, key = ec.generate_private_key(ec.SECP256R1()), key or ec.generate_private_key(ec.SECP256R1())
    until = datetime.now(UTC) + timedelta(days=days)
    root = _certificate("Authority of a test", authority, authority, until, is_authority=True)
    own = _certificate("Signer of a test", key, authority, until, is_authority=False)
    chain, secret = folder / "certificate.pem", folder / "key.pem"
    chain.write_bytes(own.public_bytes(Encoding.PEM) + root.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return chain, secret


def _certificate(
    name: str, key: Private, authority: ec.EllipticCurvePrivateKey, until: datetime, *, is_authority: bool
) -> x509.Certificate:
    usage = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    usage |= {"key_cert_sign": True, "crl_sign": True} if is_authority else {"digital_signature": True}
    built = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name("Authority of a test"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - timedelta(days=365))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if not is_authority:
        built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), critical=False)
    return built.sign(authority, hashes.SHA256())


def _name(common: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Test"), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )
