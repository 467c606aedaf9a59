"""How fast a host's jobs were, as far as their last events tell."""

import math
from collections.abc import Collection
from typing import Final

from pipelines.catalog.estimate import is_duration
from pipelines.protocol.chat import ChatFinished
from pipelines.protocol.classify import Classified
from pipelines.protocol.images import Finished, ImageJob
from pipelines.protocol.messages import AnyEvent, Job, Spec

INITIAL_JOB_S: Final = 10.0  # assumed duration of a job until one has finished
SMOOTHING: Final = 0.2  # weight of a new job's duration


class JobSpeeds:
    """`job_s` is how long a job runs, smoothed; `unit_s` the duration of a unit of work of an image checkpoint
    (pipelines.catalog.estimate), in its last job."""

    def __init__(self) -> None:
        self.job_s = INITIAL_JOB_S
        self.unit_s: dict[Spec, float] = {}

    def record(self, job: Job, event: AnyEvent) -> None:
        """Learn from an event of a job how long jobs and their units of work take."""
        if isinstance(event, Finished) and isinstance(job, ImageJob) and is_duration(event.unit_s):
            self.unit_s[job.checkpoint] = event.unit_s
        if isinstance(event, Finished | ChatFinished | Classified) and math.isfinite(event.run_s):
            self.job_s += SMOOTHING * (event.run_s - self.job_s)

    def keep(self, specs: Collection[Spec]) -> None:
        """Forget all other checkpoints than these."""
        self.unit_s = {spec: unit_s for spec, unit_s in self.unit_s.items() if spec in specs}
