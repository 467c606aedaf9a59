"""The image engine: image jobs in, files out.

    job -> rows        engine.submit: a row for each image
    row -> run         engine._dispatch: in the order of batching.start_order, if admission lets it start and its
                       checkpoint is loaded; else checkpoint_cache.load first
    run                run.execute, on a thread: pipeline.draw, one turn of the device for each forward pass; then what
                       needs no device, outside of turns
    next turn          scheduler.select_next: in the order of fairness
    forward pass       merging: the run that has the turn takes along all that wait with arguments of equal shapes
    pixels -> file     job_files; the last file of a job finishes it

- engine: the loop above, on the event loop
- scheduling/: which run has the device next, and which sample may start
- loading/: from files to checkpoints in memory
- parallel/: a checkpoint on several devices
- denoising/: the forward passes of a denoiser, shared by runs, and the steps between them
- prompts/: prompts in the tokenizers and text encoders
- drawing/: one image, from a job to its pixels
- warmup/: the images that a checkpoint draws before it serves
- tasks: which of diffusers' classes draws which task
- contact_sheet: several images on one, for the operator
- job_files: from pixels to PNG, JPEG or WebP files of a job; the last one finishes it
- failures: from an exception to the last event of a job
"""
