"""What a checkpoint draws before it serves: capability checks, and the warmup requests that measure its speed.

- warmup: what is drawn, and in which order
- capability_checks: what each class announces, tried by drawing
- check_jobs: the jobs that are drawn for it
- control_checks, adapter_checks: which controls and adapters work
- check_records: what was found, kept on disk
"""
