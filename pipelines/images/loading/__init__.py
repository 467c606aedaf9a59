"""From files to checkpoints in memory.

- load: from files to a checkpoint
- checkpoint: a loaded checkpoint: its pipelines, scheduler, adapters and capabilities
- checkpoint_cache: which checkpoints are in memory, loaded once and evicted by LRU
- parts, shared_parts: the components of a folder, and those that several checkpoints of one base have in common
- single_files, single_file_names: checkpoints of one file
- runtime_options: [runtime] of a catalog file: quantization, offloading, step caches, attention, LoRA
- fp8, compilation: linear layers that multiply in float8, and torch.compile
- adapters, adapter_loading, adapter_files, base_state: LoRA in the weights, and the weights beneath
- controls: ControlNets and IP-Adapters beside a checkpoint, and their arguments
- control_files: ControlNets and image encoders from their folders
- component_fixes: codecs that overflow in float16, and tables of positions on the host
- file_hashes: files by their content
- safety_checker: a checkpoint's own, whose flags fail a job
"""
