"""The image engine: image jobs in, files out.

    job -> rows        engine.submit: a row for each picture
    row -> run         engine._dispatch: in the order of batching.start_order, if admission lets it start and its
                       checkpoint is resident; else residency.load first
    run                run.execute, on a thread: pipeline.draw, one turn of the device for each forward pass; then what
                       needs no device, outside of turns
    next turn          scheduler.select_next: in the order of fairness
    forward pass       merging: the run that has the turn takes along all that wait with arguments of equal shapes
    pixels -> file     encode; the last file of a job finishes it

- engine: the loop above, on the event loop
- batching: in which order rows start, and what they hold
- admission: whether a row may start now
- scheduler: which run has the device next
- fairness: who goes first: the least work left within a key, and keys in turn
- merging: forward passes that several runs share
- forward_arguments: the arguments of a forward pass as rows: what can be concatenated, and how
- row_limits: how many rows may share a pass, learned from measured speed
- residency: which checkpoints are in memory, loaded once and evicted by LRU
- run: one row on its thread: steps, remaining time, previews
- pipeline: diffusers' calls for each task, and the two passes of a large picture
- safety_checker: a checkpoint's own, whose flags fail a job
- cast_codec: codecs that pipelines cast to float32 and back, such as SDXL's
- late_start: image to image and inpainting by a class that only draws from text
- call_arguments: arguments that differ between the families
- step_observer: after each step: the callback, previews on demand
- step_caches: step caches of runs that take turns
- prompt_cache: prompts that were encoded, kept for all pictures, tiles and later calls
- transfer: a picture from the device to the host, in one copy
- finish: crops, masks and references around what a pipeline draws
- tiling: the second pass, tile by tile
- previews: previews from latents, by a fitted linear map
- checkpoint: what is loaded: its pipelines, scheduler, adapters and abilities
- loading: from files to a checkpoint
- parallel/: a checkpoint on several devices
- controls: ControlNets and IP-Adapters: loading them, and their arguments
- single_files: a denoiser alone in one file: plain, float8, GGUF
- shared_parts: components that several checkpoints of one base have in common
- families: which classes draw on a checkpoint's weights
- probes: the pictures that a checkpoint draws before it serves
- control_probes: which controls work, and with what
- contact_sheet: several pictures on one, for a pipeline and for the operator
- runtime_options: [runtime] of a catalog file: quantization, offloading, step caches, attention, LoRA
- fp8: linear layers that multiply in float8
- compilation: torch.compile, with fused projections of attention
- encode: pixels to PNG, JPEG or WebP with metadata
- failures: from an exception to the last event of a job
"""
