"""Checkpoints: their files with their facts and needs, and how an image is planned. Pure, without torch.

- weight_file: one file of weights by its header, which is read once: kind, layout, quantization, sampling
- checkpoint_folder, checkpoint_files: a diffusers folder; a checkpoint as a catalog file names it, and its safety
- call_signature, class_facts: the pipelines of diffusers by their source: what they take and draw, or why they don't
- inspection, base_search, suggestion: a checkpoint's facts, the folder that fits a file, values to serve it with
- file_versions, sums: which files a checkpoint has, whether they are still the same, and what is published of them
- device_bytes, runtime, memory: bytes on a device, the settings that `runtime = "auto"` stands for, shares of workers
- adapters, upscalers: what else one file may be
- plan, estimate: how a size is drawn, directly, resized, or in two passes with tiles; the work of a job
"""
