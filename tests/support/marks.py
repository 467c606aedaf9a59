"""What an image's file says of where it comes from."""

import io
import json
from typing import Any
from xml.etree import ElementTree

from PIL import Image

SOURCE = "{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}DigitalSourceType"
TERMS = "http://cv.iptc.org/newscodes/digitalsourcetype/"
DRAWN, EDITED = f"{TERMS}trainedAlgorithmicMedia", f"{TERMS}compositeWithTrainedAlgorithmicMedia"


def xmp_source(data: bytes) -> str | None:
    """The digital source type of the file's XMP packet; None without a packet."""
    with Image.open(io.BytesIO(data)) as image:
        packet = image.info.get("XML:com.adobe.xmp") or image.info.get("xmp")
    if packet is None:
        return None
    text = packet if isinstance(packet, str) else packet.decode()
    (described,) = ElementTree.fromstring(text.encode()).iter(
        "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}Description"
    )
    return described.get(SOURCE)


def c2pa_manifest(data: bytes, media_type: str) -> tuple[str, list[dict[str, Any]], list[str]]:
    """By C2PA's own reader: the state of the signature, the actions, and what is wrong."""
    from c2pa import Reader

    reader = Reader(media_type, io.BytesIO(data))
    read = json.loads(reader.json())
    manifest = read["manifests"][read["active_manifest"]]
    (actions,) = (
        each["data"]["actions"] for each in manifest["assertions"] if each["label"].startswith("c2pa.actions")
    )
    return str(reader.get_validation_state()), actions, [each["code"] for each in read.get("validation_status", ())]
