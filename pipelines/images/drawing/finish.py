"""Crops, masks and references around the image that a pipeline draws."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pipelines.checkpoints.work.plan import Plan
from pipelines.images.denoising.previews import LONG_SIDE_PX
from pipelines.protocol.images import Box, ImageJob
from pipelines.protocol.pixels import to_image

MAX_FADE_PX = 12.0  # spread of what fades in towards a mask's edge
ALIKE = 8  # levels of 255: colours that are further apart are of two things, be one a faint mark
GRAIN_PX = 2.0  # spread of the detail that two parts of one thing differ in
WHITE = 255
LOW_SHARE = 64  # of a tile's width: the spread of its low frequencies
FADE_SHARE = 8  # that spread, by the shorter side of the hole
ASPECT_TOLERANCE = 0.03  # sizes on the grid differ by less from the aspect ratio that they stand for


def center_crop(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return the middle of an image that is larger by less than the pipeline's multiple."""
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    return image.crop((left, top, left + size[0], top + size[1]))


def to_drawn_size(image: Image.Image, job: ImageJob, plan: Plan) -> Image.Image:
    """Fit a reference, a mask or a map to the image's shape, at the size that is drawn, so that every pixel comes back
    to its place: with the edges continued where `center_crop` cuts, or scaled where the drawn image is scaled back."""
    if plan.region is not None:
        return _cut(fit_image(image, job), plan.region).resize((plan.width, plan.height), _method(image))
    if plan.finish in {"crop", "enlarge"}:
        return _continue_edges(fit_image(image, job), plan)
    scale = min(image.width / job.width_px, image.height / job.height_px)
    wide, high = job.width_px * scale, job.height_px * scale
    left, top = (image.width - wide) / 2, (image.height - high) / 2
    return image.resize((plan.width, plan.height), _method(image), box=(left, top, left + wide, top + high))


def _continue_edges(image: Image.Image, plan: Plan) -> Image.Image:
    left, top = (plan.width - image.width) // 2, (plan.height - image.height) // 2
    sides = [(top, plan.height - image.height - top), (left, plan.width - image.width - left), (0, 0)]
    pixels = np.asarray(image)
    return Image.fromarray(np.pad(pixels, sides[: pixels.ndim], mode="edge"))


def in_place(image: Image.Image, job: ImageJob, region: Box) -> Image.Image:
    """Return the reference with an image in the place of its region: the finished one, or a preview of it in as many
    pixels as the preview has."""
    whole = fit_image(to_image(job.references[0]), job).convert(image.mode)
    whole.paste(image.resize((region.width, region.height), Image.Resampling.LANCZOS), (region.left, region.top))
    return whole


def _cut(image: Image.Image, part: Box) -> Image.Image:
    return image.crop((part.left, part.top, part.left + part.width, part.top + part.height))


def composite(image: Image.Image, job: ImageJob) -> Image.Image:
    """Return the image with the reference's pixels outside the mask: the autoencoder changes them even where nothing is
    painted. Where the mask is between black and white, both are blended, and a hard edge fades inwards."""
    if job.mask is None:
        return image
    original, mask = (fit_image(to_image(each), job) for each in (job.references[0], job.mask))
    original = original.convert(image.mode)
    return Image.composite(_faded(image, original, mask), original, mask)


def _faded(image: Image.Image, original: Image.Image, mask: Image.Image) -> Image.Image:
    """Return the image with what was there before fading in towards the mask's edge, all of it at the edge, none a few
    px inside, where that looks like what is kept beside it: a sky goes on without a line, whatever was drawn into it.
    Where the mask follows a thing's own outline, or is soft, nothing comes back.

    What is kept beside a pixel is a normalised convolution with a Gaussian (Knutsson and Westin, CVPR 1993).
    """
    hole = mask.getbbox()
    if hole is None:
        return image
    spread = min(MAX_FADE_PX, max(1.0, min(hole[2] - hole[0], hole[3] - hole[1]) / FADE_SHARE))
    reach = math.ceil(3 * spread)
    left, top, right, bottom = (
        max(0, hole[0] - reach), max(0, hole[1] - reach),
        min(mask.width, hole[2] + reach), min(mask.height, hole[3] + reach),
    )  # fmt: skip
    box = (left, top, right, bottom)
    drawn, before, level = (_channels(each.crop(box)) for each in (image, original, mask))
    kept, painted = (level == 0).float(), (level == WHITE).float()
    colours = slice(0, 3)  # alpha stays as it was drawn
    around = _spread(torch.cat([before[colours] * kept, kept, painted]), spread)
    beside_kept, beside_painted = (2 * around[-2]).clamp(max=1), (4 * around[-1]).clamp(max=1)  # a corner has a quarter
    within = 1 - kept
    apart = (before[colours] - around[:-2] / around[-2].clamp(min=1e-4)) * within
    mean = _spread(torch.cat([apart, within]), GRAIN_PX)
    unlike = (mean[:-1] / mean[-1].clamp(min=1e-4)).abs().amax(dim=0)
    share = within * beside_kept * beside_painted / (1 + (unlike / ALIKE) ** 2)
    drawn[colours] += share * (before[colours] - drawn[colours])
    result = image.copy()
    pixels = drawn.round().clamp(0, 255).byte().movedim(0, -1).squeeze(-1).contiguous().numpy()
    result.paste(Image.fromarray(pixels, image.mode), box[:2])
    return result


def with_colours_of(source: Image.Image, drawn: Image.Image) -> Image.Image:
    """Return what was drawn of a source, with the source's low frequencies: a redrawn tile keeps its colours, and shows
    new detail. The two are parted by a Gaussian (StableSR's colour fix, Wang et al., arXiv 2305.07015, parts them by
    wavelets)."""
    new, old = _channels(drawn), _channels(source.convert(drawn.mode))
    moved = _spread(torch.cat([old - new, torch.ones_like(old[:1])]), max(2.0, drawn.width / LOW_SHARE))
    pixels = (new + moved[:-1] / moved[-1:]).round().clamp(0, 255).byte().movedim(0, -1).contiguous().numpy()
    return Image.fromarray(pixels, drawn.mode)


def _channels(image: Image.Image) -> torch.Tensor:
    """Return pixels as a tensor of shape (channels, height, width)."""
    return torch.from_numpy(np.asarray(image).copy()).reshape(image.height, image.width, -1).movedim(-1, 0).float()


def _spread(values: torch.Tensor, spread: float) -> torch.Tensor:
    """Convolve channels with a Gaussian of this standard deviation in px: a wide one on a coarser grid."""
    size, coarse = values.shape[-2:], max(1, int(spread / 3))
    values = F.avg_pool2d(values[:, None], coarse, ceil_mode=True, count_include_pad=False)
    reach = math.ceil(3 * spread / coarse)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) * coarse / spread) ** 2)
    kernel /= kernel.sum()
    values = F.conv2d(values, kernel[None, None, None, :], padding=(0, reach))
    values = F.conv2d(values, kernel[None, None, :, None], padding=(reach, 0))
    grown = F.interpolate(values, scale_factor=coarse, mode="bilinear") if coarse > 1 else values
    return grown[:, 0, : size[0], : size[1]]


def fit_image(image: Image.Image, job: ImageJob) -> Image.Image:
    """Fit a reference, a mask or a map to the finished size, cut to its shape: the same pixels if it has that size."""
    return ImageOps.fit(image, (job.width_px, job.height_px), _method(image))


def _method(image: Image.Image) -> Image.Resampling:
    """Choose the filter by which an image is scaled: a mask must not ring, since the part that it leaves out stays as
    it was."""
    return Image.Resampling.BILINEAR if image.mode == "L" else Image.Resampling.LANCZOS


def binary_mask(mask: Image.Image) -> Image.Image:
    """Return a mask that is white wherever this one paints at all: pipelines divide at one half, and blended pixels
    must have been painted."""
    return mask.point([0] + [255] * 255)


def align_reference(reference: Image.Image, job: ImageJob, plan: Plan) -> Image.Image:
    """Scale a reference of the image's aspect ratio to the size that is drawn, so that the two align. Others stay as
    they are.

    A pipeline with native references crops other sizes to its multiple, which shifts the content.
    """
    ratio = (reference.width * job.height_px) / (reference.height * job.width_px)
    if abs(ratio - 1) >= ASPECT_TOLERANCE:
        return reference
    if plan.finish == "crop":
        return _continue_edges(reference.resize((job.width_px, job.height_px), Image.Resampling.LANCZOS), plan)
    return reference.resize((plan.width, plan.height), Image.Resampling.LANCZOS)


def thumbnail(image: Image.Image) -> NDArray[np.uint8]:
    """Return the image so far, as a preview of the second pass."""
    small = image.copy()
    small.thumbnail((LONG_SIDE_PX, LONG_SIDE_PX))
    return np.asarray(small)


SIDE_PX = 1024  # of the sheet; no pipeline reads references much larger


def combine_references(references: Sequence[Image.Image], first: int) -> list[Image.Image]:
    """Return the first `first` references as they are, and one sheet with the others side by side, row by row."""
    alone, others = list(references[:first]), references[first:]
    if len(others) < 2:
        return [*alone, *others]
    columns = math.ceil(math.sqrt(len(others)))
    rows = math.ceil(len(others) / columns)
    side = SIDE_PX // columns
    sheet = Image.new(others[0].mode, (columns * side, rows * side), "white")
    for number, image in enumerate(others):
        row, column = divmod(number, columns)
        cell = ImageOps.contain(image, (side, side), Image.Resampling.LANCZOS)
        left, top = (side - cell.width) // 2, (side - cell.height) // 2
        sheet.paste(cell, (column * side + left, row * side + top))
    return [*alone, sheet]
