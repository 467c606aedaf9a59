"""From the catalog's TOML and the checkpoints' files to specs, sizes and estimates. Pure, without torch.

- images: the image catalog: model names, prices, sizes, and a CheckpointSpec for each file
- chat: the chat catalog: local checkpoints and upstreams
- schema: the pydantic models of the image catalog's files
- toml: strict TOML, whose errors name file, line and key
- checkpoint_files: what a checkpoint's files say without loading them: safety, class, bytes, hashes
- sizes: the output size of a request
- plan: how a size is drawn: directly, resized, or in two passes with tiles
- conditioning: the task of a job: text, native references, redraw or inpaint
- estimate: the work of a job, and the measured speed of a checkpoint
"""
