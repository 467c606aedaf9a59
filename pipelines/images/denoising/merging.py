"""Forward passes of a denoiser that several runs share: whoever has the turn takes along all that wait with equal
shapes, also where their step counts, guidance or start differ.

Each run keeps its own pipeline and scheduler; only the denoiser's calls are taken over. Passes that can't
be concatenated run alone. The first shared pass of each structure of arguments is checked against passes alone, so that
a denoiser whose rows are not independent is never shared.
"""

import inspect
import math
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import torch

from pipelines.device.call_wrapping import Call, wrap_calls
from pipelines.device.failures import clear_frames, is_out_of_memory
from pipelines.device.timing import DeviceTimer
from pipelines.images.denoising.forward_arguments import (
    Fingerprints,
    Layout,
    Unmergeable,
    largest_difference,
    merge,
    shared_key,
    split,
    structure,
)
from pipelines.images.denoising.pass_graphs import PassGraphs
from pipelines.images.scheduling.row_limits import PassShape, RowLimits
from pipelines.images.scheduling.scheduler import DeviceScheduler, DeviceTurn, ForwardRequest

TOLERANCE = 1e-3  # of the norm of a pass alone: sums are rounded in another order
LOW_PRECISION_TOLERANCE = 0.05


class Sharing(NamedTuple):
    """The state that the runs of all checkpoints share."""

    scheduler: DeviceScheduler
    limits: RowLimits


class ForwardMerger:
    """Answers the calls of a denoiser. Those of threads without a turn pass through. With a reason as `refused` runs
    take turns, and none shares a pass. `graphs` repeat passes that come again."""

    def __init__(
        self, denoiser: Any, sharing: Sharing, refused: str | None = None, graphs: PassGraphs | None = None
    ) -> None:
        self.graphs = graphs
        self._denoiser = denoiser
        self._signature = inspect.signature(denoiser.forward)
        self._scheduler, self._limits = sharing
        self._fingerprints = Fingerprints()
        self._independent: dict[Hashable, bool] = {}  # whether rows are, by structure of the arguments
        self._never = refused is not None
        self.refused = refused  # why a structure of arguments is never shared: the first such
        self._timer = DeviceTimer()
        wrap_calls(denoiser, self._answer)

    def _answer(self, call: Call) -> Call:
        self._forward = call
        return lambda *positional, **named: self._forward_shared(positional, named)

    def _forward_shared(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the denoiser's output for these arguments, computed alone or with those of others. Blocks."""
        turn = self._scheduler.current
        if turn is None:
            return self._forward(*positional, **named)
        request = self._request(self._by_name(positional, named), turn)
        self._scheduler.wait_for(request)
        if not request.done:
            self._compute(request, turn.shape)
        turn.request = None
        turn.merged |= request.merged
        if request.error is not None:
            raise request.error
        return request.output

    def _by_name(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        arguments = dict(self._signature.bind(*positional, **named).arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= arguments.pop(parameter.name, {})
        return arguments

    def _request(self, arguments: Mapping[str, Any], turn: DeviceTurn) -> ForwardRequest:
        room = self._limits.of(turn.shape)
        if self._never or not self._scheduler.contended or room == 1:
            return ForwardRequest(arguments)  # a key reads position ids from the device
        try:
            key = id(self), shared_key(arguments, Layout.of(arguments), self._fingerprints)
        except Unmergeable:
            return ForwardRequest(arguments)
        shareable = self._independent.get(structure(key), True)
        return ForwardRequest(arguments, key if shareable else None, room)

    def _compute(self, request: ForwardRequest, shape: PassShape | None) -> None:
        """Compute the request of the calling thread, and of others if they can share the pass."""
        began = self._scheduler.clock()
        requests = [request]
        if request.key is not None:
            requests += self._scheduler.mergeable_requests(request, self._limits.of(shape) - 1)
        if len(requests) == 1 or not self._share(requests, shape):
            requests = [request]
            self._run_alone(request, shape)
        self._scheduler.record_pass(requests, self._scheduler.clock() - began)

    def _run_alone(self, request: ForwardRequest, shape: PassShape | None) -> None:
        try:
            with self._timer.measure(lambda seconds: self._limits.record(shape, 1, seconds)):
                request.output = self._pass(request.arguments)
        except Exception as error:
            request.error = error
        request.done = True

    def _share(self, requests: list[ForwardRequest], shape: PassShape | None) -> bool:
        """Compute the requests in one pass. If that fails, none is done: they go on alone."""
        form = structure(requests[0].key)
        try:
            with self._timer.measure(lambda seconds: self._limits.record(shape, len(requests), seconds)):
                outputs = self._in_one_pass(requests)
        except Exception as error:
            if is_out_of_memory(error):
                clear_frames(error)  # they hold the tensors that did not fit
                self._limits.halve(shape, len(requests))
            else:
                self._refuse(form, f"{type(error).__name__}: {error}")
            return False
        if form not in self._independent:
            self._check_independence(form, requests, outputs, shape)
            return True
        for request, output in zip(requests, outputs, strict=True):
            request.output, request.done, request.merged = output, True, True
        return True

    def _pass(self, arguments: Mapping[str, Any]) -> Any:
        return self._forward(**arguments) if self.graphs is None else self.graphs.compute(self._forward, arguments)

    def _in_one_pass(self, requests: list[ForwardRequest]) -> list[Any]:
        layouts = [Layout.of(request.arguments) for request in requests]
        merged = merge([request.arguments for request in requests], layouts)
        return split(self._pass(merged), layouts)

    def _check_independence(
        self, form: Hashable, requests: list[ForwardRequest], outputs: list[Any], shape: PassShape | None
    ) -> None:
        """Compute all passes alone too, and compare. The runs go on with the outputs that they got alone. Outputs that
        are not finite, as of a broken adapter, say nothing of the passes to come."""
        for request in requests:
            self._run_alone(request, shape)
        if all(request.error is None for request in requests):
            pairs = zip(requests, outputs, strict=True)
            differences = [largest_difference(request.output, output) for request, output in pairs]
            if any(map(math.isnan, differences)):
                return
            worst = max(differences)
            tolerance = TOLERANCE if self._denoiser.dtype == torch.float32 else LOW_PRECISION_TOLERANCE
            self._independent[form] = worst <= tolerance
            if worst > tolerance:
                self._refuse(form, f"its rows differ by {worst:.3g} of their norm from what they are alone")

    def _refuse(self, form: Hashable, reason: str) -> None:
        self._independent[form] = False
        self.refused = self.refused or reason
