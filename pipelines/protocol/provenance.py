"""The mark by which programs see that a model made an image: an XMP packet with IPTC's digital source type.

The EU's AI Act asks for such a mark (Article 50(2) of Regulation 2024/1689). The terms are those of
http://cv.iptc.org/newscodes/digitalsourcetype/.
"""

from typing import Literal

# drawn from a text, or an image of the caller's that a model has changed
DigitalSource = Literal["trainedAlgorithmicMedia", "compositeWithTrainedAlgorithmicMedia"]
XMP_KEYWORD = "XML:com.adobe.xmp"  # of the iTXt chunk of a PNG


def digital_source_type(source: DigitalSource) -> str:
    """Return the address of IPTC's term for a source."""
    return f"http://cv.iptc.org/newscodes/digitalsourcetype/{source}"


def xmp_packet(source: DigitalSource) -> str:
    """Return the mark as an XMP packet (ISO 16684-1), to be written as UTF-8."""
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>'
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description rdf:about="" xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/" '
        f'xmlns:xmp="http://ns.adobe.com/xap/1.0/" Iptc4xmpExt:DigitalSourceType="{digital_source_type(source)}" '
        'xmp:CreatorTool="Darkroom"/></rdf:RDF></x:xmpmeta><?xpacket end="r"?>'
    )
