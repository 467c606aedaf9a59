"""The images that a checkpoint draws for nobody, before it serves and while it does: capability checks, and the warmup
requests that measure its speed.

- warmup: the images that are drawn, and their order
- capability_checks: the capabilities that each class announces, tried by drawing
- check_jobs: the jobs that are drawn for it
- control_checks, adapter_checks: which controls and adapters work
- late_checks: which calls need what is tried while it serves
- check_records: the findings, kept on disk
"""
