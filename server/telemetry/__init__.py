"""How a running server is observed and tested.

- `logs`: structured logs on stderr and in a file
- `metrics`: the Prometheus metrics
- `engine_metrics`: those of the worker processes
- `call_trace`: the facts about a request while it runs
- `tracing`: OpenTelemetry's spans
- `crash_points`: moments at which a test can kill the server
"""
