"""Crops, masks and references around what a pipeline draws."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pipelines.images.previews import LONG_SIDE_PX
from pipelines.protocol.images import ImageJob, Picture

ASPECT_TOLERANCE = 0.03  # sizes on the grid differ by less from the aspect ratio that they stand for


def center_crop(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The middle of a picture that is larger by less than the pipeline's multiple."""
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    return image.crop((left, top, left + size[0], top + size[1]))


def composite(image: Image.Image, job: ImageJob) -> Image.Image:
    """Restore the reference's pixels outside the mask: the autoencoder changes them even where nothing is painted."""
    if job.mask is None:
        return image
    original = ImageOps.fit(to_image(job.references[0]), image.size, Image.Resampling.LANCZOS)
    return Image.composite(image, original, fit_mask(job.mask, image.size))


def to_image(picture: Picture) -> Image.Image:
    """The same pixels for Pillow."""
    return Image.frombytes(picture.mode, (picture.width_px, picture.height_px), picture.data)


def align_reference(reference: Image.Image, job: ImageJob, size: tuple[int, int]) -> Image.Image:
    """A reference of the picture's aspect ratio, resized to the size that is drawn, so that the two align.

    A pipeline with native references crops other sizes to its multiple, which shifts the content.
    """
    ratio = (reference.width * job.height_px) / (reference.height * job.width_px)
    same_aspect = abs(ratio - 1) < ASPECT_TOLERANCE
    return reference.resize(size, Image.Resampling.LANCZOS) if same_aspect else reference


def fit_mask(mask: Picture, size: tuple[int, int]) -> Image.Image:
    """The mask, scaled and cut as its reference is."""
    return ImageOps.fit(to_image(mask), size, Image.Resampling.NEAREST)


def thumbnail(image: Image.Image) -> NDArray[np.uint8]:
    """A preview of the second pass: the picture so far."""
    small = image.copy()
    small.thumbnail((LONG_SIDE_PX, LONG_SIDE_PX))
    return np.asarray(small)
