"""From the catalog's TOML and the checkpoints' files to specs, sizes and estimates. Pure, without torch.

- images: the image catalog: model names, prices and sizes
- specs: the spec of each file's checkpoint
- chat: the chat catalog: local checkpoints and upstreams
- schema: the pydantic models of the image catalog's files
- toml: strict TOML, whose errors name file, line and key
- checkpoint_files: what a checkpoint's files say without loading them: safety, class, bytes, hashes
- runtime: options that defeat each other, and what `runtime = "auto"` stands for
- memory: what the other workers use of the image worker's device
- weight_headers: the headers of safetensors and GGUF files
- call_signature: a pipeline's call, from the source of diffusers
- inspection, suggestion: what a checkpoint is and can do, and the values that fit it
- new_file, manifest: the catalog file of a checkpoint that is added, and the sums of its files
- adapters: rank and trigger words of LoRA files
- sizes: the output size of a request
- plan: how a size is drawn: directly, resized, or in two passes with tiles
- conditioning: the task of a job: text, native references, redraw or inpaint
- estimate: the work of a job, and the measured speed of a checkpoint
"""
