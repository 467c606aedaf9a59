"""Checkpoints: their files with their facts and needs, and how an image is planned. Pure, without torch.

Each room knows those below it alone:

- inspection: a checkpoint's class, parts and capabilities, the folder that fits a file, and the values to serve it with
- memory: the bytes of its weights on a device, the settings that `runtime = "auto"` stands for, shares of workers
- folder: a diffusers folder, or one file with a folder beside it; what is wrong with them; versions and sums of files
- weight_file: one file of weights by its header, read once: kind, layout, quantization, sampling, adapters, upscalers
- classes: model_index.json, and the pipelines of diffusers by their source
- work: how a size is drawn, in one pass or two with tiles, and how long that takes
"""
