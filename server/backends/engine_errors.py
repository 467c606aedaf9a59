"""Why an engine host can't take or finish what it is given."""

from pipelines.protocol.messages import JobKind


class QueueFull(Exception):
    """The queue is full; `retry_after_s` estimates when it is not."""

    def __init__(self, kind: JobKind, retry_after_s: float) -> None:
        super().__init__(f"the {kind} queue is full; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class WorkerDied(Exception):
    """The worker died, or was restarting, while a checkpoint was being prepared."""

    def __init__(self, kind: JobKind) -> None:
        super().__init__(f"the {kind} worker died while the checkpoint was loading")
