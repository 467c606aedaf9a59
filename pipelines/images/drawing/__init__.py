"""One image on the device and on the host, from a job to its pixels.

- run: one sample on its thread: steps, remaining time, previews
- pipeline: the calls of diffusers' pipelines for each task, and the two passes of a large image
- finish: crops, masks and references around the image that a pipeline draws; several references as one image
- tiling: the second pass, and an upscaler's passes, tile by tile
- returned_image: the output of a pipeline call, on its way from the device to the host
- image_checks: whether an image is one
"""
