"""The denoising loop: the forward passes of the denoiser, the steps between them, and where they start.

- merging: forward passes that several runs share
- forward_arguments: the arguments of a forward pass as rows: which can be concatenated, and how
- step_caches: step caches of runs that take turns
- noise_schedulers: the noise scheduler of each run
- own_noise: the generator of each image, for its schedulers and for what libraries leave to torch's global one
- late_start: img2img and inpainting by a class that only draws from text, from noised latents
- step_observer: after each step: the callback, and previews on demand
- previews: previews from latents, by a fitted linear map
"""
