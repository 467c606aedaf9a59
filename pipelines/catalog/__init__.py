"""Checkpoints: their files, what these say and need, and how an image is planned. Pure, without torch.

- checkpoint_files: what a checkpoint's files say without loading them: safety, class, bytes, hashes
- runtime: options that defeat each other, and what `runtime = "auto"` stands for
- memory: what the other workers use of the image worker's device
- weight_headers: the headers of safetensors and GGUF files
- call_signature: a pipeline's call, from the source of diffusers
- inspection, suggestion: what a checkpoint is and can do, and the values that fit it
- manifest: the sums of the files of a checkpoint that is added
- adapters: rank and trigger words of LoRA files
- plan: how a size is drawn: directly, resized, or in two passes with tiles
- conditioning: the task of a job: text, native references, redraw or inpaint
- estimate: the work of a job, and the measured speed of a checkpoint
"""
