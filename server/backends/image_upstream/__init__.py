"""Image models that other servers draw: another Darkroom, SGLang-Diffusion, vLLM-Omni.

- transport: such a server in place of an image worker, under an EngineHost
- drawing: one job, from its requests to its finished files; repeated where that is safe
- requests: a job as the fields that each server takes
- exchange: one HTTP request, and the images or the error that came back
- answers: errors of each server, as ours
"""
