"""The image engine: image jobs in, files out.

    job -> rows        engine.submit: a row for each picture
    rows -> batches    batching.form_batches: rows with equal keys share every forward pass
    batch -> run       engine._dispatch: if its checkpoint is resident and its tensors fit; else residency.load first
    run                run.execute, on a thread: pipeline.draw, one turn of the device for each forward pass; then what
                       needs no device, outside of turns
    next turn          scheduler.select_next: the run with the least work left, unless one is overdue
    pixels -> file     encode; the last file of a job finishes it

- engine: the loop above, on the event loop
- batching: which rows form a batch, and in which order batches start
- scheduler: which run has the device next
- residency: which checkpoints are in memory, loaded once and evicted by LRU
- run: one batch on its thread: steps, remaining time, previews
- pipeline: diffusers' calls for each task, and the two passes of a large picture
- call_arguments: arguments that differ between the families
- step_observer: after each step: the callback, previews on demand
- step_caches: step caches of runs that take turns
- transfer: pictures from the device to the host, in one copy
- finish: to exactly the size that was asked for
- tiling: the second pass, tile by tile
- previews: previews from latents, by a fitted linear map
- checkpoint: loading a checkpoint; its pipelines, scheduler, adapters and abilities
- runtime_options: [runtime] of a catalog file: quantization, offloading, step caches, LoRA
- warmup: the picture that a new checkpoint draws first
- encode: pixels to PNG, JPEG or WebP with metadata
- failures: from an exception to the last event of a job
"""
