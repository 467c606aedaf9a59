"""Checkpoints: their files with their facts and needs, and how an image is planned. Pure, without torch.

- checkpoint_files: facts from a checkpoint's files without loading them: safety, class, bytes, hashes
- runtime: options that defeat each other, and the settings that `runtime = "auto"` stands for
- memory: the share of the image worker's device that other workers use
- weight_headers: the headers of safetensors and GGUF files
- call_signature: a pipeline's call, from the source of diffusers
- inspection, suggestion: a checkpoint's class, parts and capabilities, and the values that fit it
- file_versions: which files a checkpoint has, links followed, and whether they are still the same
- manifest: the sums of the files of a checkpoint that is added
- checksums: the line that describes a checkpoint, and its files' sums against those that are published
- adapters: rank and trigger words of LoRA files
- plan: how a size is drawn: directly, resized, or in two passes with tiles
- conditioning: the task of a job: text, native references, redraw or inpaint
- estimate: the work of a job, and the measured speed of a checkpoint
"""
