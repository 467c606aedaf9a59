"""One image on the device and on the host, from a job to its pixels.

- run: one sample on its thread: steps, remaining time, previews
- pipeline: the calls of diffusers' pipelines for each task, and the two passes of a large image
- finish: crops, masks and references around the image that a pipeline draws
- tiling: the second pass, tile by tile
- reference_sheet: several references as one image, for pipelines that take fewer than were sent
- returned_image: the output of a pipeline call, on its way from the device to the host
- image_checks: whether an image is one
"""
