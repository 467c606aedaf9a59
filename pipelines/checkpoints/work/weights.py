"""Which checkpoint files share one copy of the weights, and which jobs can use them at once."""

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipelines.protocol.images import CheckpointSpec, Control, ImageJob, Runtime


class WeightsKey(NamedTuple):
    """Specs with the same files and runtime options share the weights, also where their sampling differs."""

    path: Path
    config: Path | None
    base: Path | None
    runtime: Runtime
    version: str
    controls: tuple[Control, ...] = ()
    parts: tuple[tuple[str, Path], ...] = ()


def weights_key(spec: CheckpointSpec) -> WeightsKey:
    """Return the key of a spec's weights: specs with equal keys share one copy."""
    return WeightsKey(spec.path, spec.config, spec.base, spec.runtime, spec.version, spec.controls, spec.parts)


def replaces(new: CheckpointSpec, old: CheckpointSpec) -> bool:
    """Return whether `new` is a swap of `old`: other files for an otherwise equal catalog file, or the same files with
    other settings."""
    as_old = replace(new, name=old.name, path=old.path, version=old.version, sampling=old.sampling)
    return new.path == old.path or replace(as_old, adapters_version=old.adapters_version) == old


def weights_state(job: ImageJob) -> Hashable:
    """Return the state in which a job needs the weights: its LoRA adapters, and its IP-Adapters with their strengths.
    Only jobs with equal ones can be drawn at once."""
    adapters = {control.name for control in job.checkpoint.controls if control.kind == "ip-adapter"}
    inputs = ((control.name, control.strength) for control in job.controls if control.name in adapters)
    return job.sampling.loras, tuple(inputs)
