"""C2PA manifests in images, signed with the operator's certificate: who says that a model made them. Nothing is asked
of any other machine, a timestamp authority included.

The key stays in the server's process: workers, also those of other machines, and other servers' images need none.
"""

import asyncio
import io
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from pipelines.protocol.images import EncodedImage, Encoding, Finished
from pipelines.protocol.machine import extra_command
from pipelines.protocol.provenance import DigitalSource, digital_source_type
from server.errors import EngineFailure, StartError

if TYPE_CHECKING:
    from c2pa import Context, Signer

log = structlog.stdlib.get_logger("darkroom.signing")

SETTINGS = {"builder": {"thumbnail": {"enabled": False}}, "verify": {"remote_manifest_fetch": False}}
# A PNG of one pixel, signed at start to try the certificate
CHECK_PREFIX = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c636000000002000148afa4710000000049454e44ae426082"
)


class ImageSigner:
    """Signs finished images. `open_signer` makes it."""

    def __init__(self, signer: "Signer", context: "Context") -> None:
        self._signer = signer
        self._context = context

    async def signed(self, finished: Finished, encoding: Encoding) -> Finished:
        """Return the job's end with signed files, in its format. Raises EngineFailure."""
        if encoding.source is None:
            return finished
        try:
            images = [await asyncio.to_thread(self._sign_image, image, encoding.source) for image in finished.images]
        except Exception as error:
            log.exception("an image could not be signed")
            raise EngineFailure("An image could not be signed; nothing was charged.", code="signing_failed") from error
        return replace(finished, images=tuple(images))

    def sign(self, data: bytes, media_type: str, source: DigitalSource) -> bytes:
        """Return the file, signed with a manifest. Blocks. Raises C2paError, as for a certificate that is not one for
        signing."""
        from c2pa import Builder

        signed = io.BytesIO()
        builder = Builder(_manifest(source), self._context)
        builder.sign(self._signer, media_type, io.BytesIO(data), signed)
        return signed.getvalue()

    def _sign_image(self, image: EncodedImage, source: DigitalSource) -> EncodedImage:
        return replace(image, data=self.sign(image.data, image.media_type, source))


def open_signer(certificate: Path | None, key: Path | None, *, marks: bool) -> ImageSigner | None:
    """Open a signer with the chain of certificates (its own first) and the private key in these PEM files; None without
    them. Raises StartError for a pair that makes no valid signature now."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise StartError("DARKROOM_C2PA_CERTIFICATE and DARKROOM_C2PA_KEY go together: set both or none.")
    if not marks:
        raise StartError("DARKROOM_C2PA_CERTIFICATE signs the mark of images: it needs DARKROOM_MARK_PICTURES=true.")
    try:
        from c2pa import C2paSignerInfo, Context, Reader, Settings, Signer
    except ImportError as error:
        raise StartError(f"DARKROOM_C2PA_CERTIFICATE needs more packages: {extra_command('c2pa')}") from error
    try:
        chain, secret = certificate.read_bytes(), key.read_bytes()
        context = Context(Settings.from_dict(SETTINGS))
        info = C2paSignerInfo(_algorithm(secret), chain, secret, None)
        signer = ImageSigner(Signer.from_info(info), context)
        tried = signer.sign(CHECK_PREFIX, "image/png", "trainedAlgorithmicMedia")
        reader = Reader("image/png", io.BytesIO(tried), context=context)
        state, found = reader.get_validation_state(), reader.get_validation_results()
    except Exception as error:  # the libraries' of their own kinds
        raise StartError(f"DARKROOM_C2PA_CERTIFICATE and DARKROOM_C2PA_KEY can't sign images: {error}") from error
    if state not in {"Valid", "Trusted"}:
        reasons = ", ".join(_failures(found))
        raise StartError(f"DARKROOM_C2PA_CERTIFICATE makes no valid signature: {reasons or state}.")
    return signer


def _algorithm(key: bytes) -> str:
    """Return C2PA's name of the signature that a private key makes. Raises ValueError."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private = load_pem_private_key(key, None)
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return "ed25519"
    if isinstance(private, rsa.RSAPrivateKey):
        return "ps256"
    curves = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512"}
    if isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name in curves:
        return curves[private.curve.name]
    raise ValueError("the key is none of ECDSA (P-256, P-384, P-521), RSA and Ed25519")


def _manifest(source: DigitalSource) -> dict[str, Any]:
    """Return the manifest, which says that a model made the image, or changed one. Nothing of the caller's image is
    named in it."""
    described = {"digitalSourceType": digital_source_type(source), "softwareAgent": {"name": "Darkroom"}}
    actions = [{"action": "c2pa.created", **described}]
    if source == "compositeWithTrainedAlgorithmicMedia":
        actions.append({"action": "c2pa.edited", **described})
    return {
        "claim_generator_info": [{"name": "Darkroom", "version": version("darkroom")}],
        "assertions": [{"label": "c2pa.actions.v2", "data": {"actions": actions}}],
    }


def _failures(results: Any) -> list[str]:
    failed = (results or {}).get("activeManifest", {}).get("failure", ())
    return [str(each.get("explanation") or each.get("code")) for each in failed]
