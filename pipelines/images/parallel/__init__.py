"""A checkpoint on several devices: `[runtime] gpus` and `parallel`.

A worker with several devices is rank 0 of a process group. It draws as any worker does; for the denoiser alone it
starts a rank for each further device. The ranks above 0 wait on a pipe for the commands of rank 0, never inside a
collective operation, and each command is a whole forward pass. So a turn is one collective forward pass, and turns,
shared passes, cancels and previews are rank 0's own affair.

- choice: the way in which a checkpoint is divided, and the refusals
- group: rank 0: starts the other ranks, sends them commands, and ends with them
- process: rank 0's end of another rank
- rank_main: a rank above 0: `python -m pipelines.images.parallel.rank_main`
- messages: the messages in the pipes, with their tensors apart
- process_group: the collective operations of all ranks
- shards: on every device a part of the denoiser's weights (`parallel = "tensor"`), or of an image's tokens (`context`)
- encoders: `parallel = "encoders"`: text encoders on the second device, without further processes
"""
