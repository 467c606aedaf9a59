"""The image workers as one engine: which of them draws a job, and which checkpoints each loads.

A worker that dies costs its own jobs and nothing else: the others go on, and get the jobs that come meanwhile. Models
of other servers have a host for each server, which is there from the first catalog that names it until the end.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.work.estimate import FIRST_UNIT_S, WeightsKey, weights_key, work_units
from pipelines.protocol.images import CheckpointSpec, Event, Failed, ImageJob
from pipelines.protocol.messages import Capabilities, CheckpointState, Spec
from server.backends.demands import ImageHost, Member, demands_of
from server.backends.failed_loads import LOAD, pixels
from server.backends.job_events import JobEvents, QueueFull
from server.backends.placement import Placement, place
from server.backends.worker_checkpoints import FIRST_LOAD_S, WorkerDied
from server.catalog.images import Catalog

log = structlog.stdlib.get_logger("darkroom.engine")

RESTORE_BYTES_PER_S = 10e9  # from the host's memory to a GPU
AS_SOON = 1.1  # of workers that would finish a job within a tenth of the soonest, the one with the least work gets it
CHECK_S = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A catalog on the workers: the checkpoints that each loads at start, and the workers that may draw with each."""

    specs: tuple[CheckpointSpec, ...] = ()
    placement: Placement = field(default_factory=dict)
    allowed: Mapping[WeightsKey, frozenset[str]] = field(default_factory=dict)
    bytes: Mapping[WeightsKey, int] = field(default_factory=dict)
    upstreams: tuple[CheckpointSpec, ...] = ()  # that other servers draw
    too_small: Mapping[str, Mapping[CheckpointSpec, str]] = field(default_factory=dict)  # why a worker draws without


class WorkerPool:
    """Several hosts of image workers, with the interface of one. `replicas` is by model; `open_upstream` makes the host
    of another server by its URL. All calls but `plan` are made on one event loop."""

    def __init__(
        self,
        members: Sequence[Member],
        replicas: Mapping[str, int] | None = None,
        open_upstream: Callable[[str], ImageHost] | None = None,
    ) -> None:
        self._members = tuple(members)
        self._replicas = replicas or {}
        self._open_upstream = open_upstream
        self._preloads = True
        self._prepared = False  # for a plan that `unload_except` has not had yet
        self._upstreams: dict[str, ImageHost] = {}
        self._starting: set[asyncio.Task[None]] | None = None  # of hosts; None while stopped
        self.current = Plan()

    @property
    def hosts(self) -> tuple[ImageHost, ...]:
        """Return the hosts of the workers, then those of the other servers that the catalog names or that still
        draw."""
        named = {spec.upstream.base_url for spec in self.current.upstreams if spec.upstream is not None}
        return (*self.workers, *(host for url, host in self._upstreams.items() if url in named or host.jobs))

    @property
    def workers(self) -> tuple[ImageHost, ...]:
        """Return the hosts of the workers alone, whether they run or not."""
        return tuple(member.host for member in self._members)

    @property
    def alive(self) -> tuple[ImageHost, ...]:
        """Return the hosts of the workers that take jobs now, without other servers."""
        return tuple(host for host in self.workers if host.status.takes_jobs and not host.status.sharing.leaving)

    @property
    def ready(self) -> bool:
        """Return whether calls are taken: no worker is still in its first start, unless it has failed or is late, and
        one is ready. Other servers are not waited for."""
        started = all(host.ready or host.restarts > 0 or host.is_late for host in self.workers)
        return started and any(host.ready for host in self.workers)

    @property
    def device(self) -> str | None:
        """Describe the devices for people; None until a worker is up."""
        return ", ".join(device for host in self.alive if (device := host.status.device) is not None) or None

    @property
    def checkpoints(self) -> dict[Spec, CheckpointState]:
        """Return the state of each checkpoint; one that failed on some workers only has loaded."""
        found: dict[Spec, CheckpointState] = {}
        for host in self.hosts:
            for spec, state in host.checkpoints.items():
                if spec not in found or found[spec].state == "failed":
                    found[spec] = state
        return found

    def capabilities(self, spec: CheckpointSpec) -> Capabilities | None:
        """Return the capabilities of a checkpoint; None until some worker has loaded it."""
        return next((found for host in self.hosts if (found := host.capabilities(spec)) is not None), None)

    def unit_s(self, spec: CheckpointSpec) -> float | None:
        """Return the seconds of a unit of work, on the fastest worker that has measured it."""
        return min((found for host in self.hosts if (found := host.unit_s(spec)) is not None), default=None)

    async def wait_ready(self) -> None:
        """Wait until the pool has been `ready` once."""
        waiting = {asyncio.create_task(host.wait_ready()) for host in self.workers}
        try:
            while waiting and not self.ready:
                _, waiting = await asyncio.wait(waiting, timeout=CHECK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def start(self) -> None:
        """Start the workers, and restart them until `stop`."""
        self._starting = set()
        for host in self.hosts:
            await host.start()

    async def stop(self) -> None:
        """End the workers. Their jobs fail."""
        self._starting = None
        await asyncio.gather(*(host.stop() for host in (*self.workers, *self._upstreams.values())))

    async def change_members(self, members: Sequence[Member], catalog: Catalog) -> bool:
        """Replace the workers by others, of a cluster whose machines come and go; those whose names are here already
        stay as they are. The jobs of others fail. New ones load the checkpoints that they have room for. Raises
        CheckpointError where the catalog does not fit them, and then none changes. Nor does any while checkpoints are
        prepared, whose plan is for the present ones: then this returns False, and is to be called again after
        `unload_except`."""
        if self._prepared:
            return False
        here = {member.host.name: member for member in self._members}
        before, after = self._members, tuple(here.get(member.host.name, member) for member in members)
        self._members = after
        try:
            plan = await asyncio.to_thread(self.plan, catalog)
        except CheckpointError:
            self._members = before
            raise
        self.unload_except(plan, preload=self._preloads, retries=False)  # the catalog is as it was
        for member in after:
            if member not in before:
                await member.host.start()
        await asyncio.gather(*(member.host.stop() for member in before if member not in after))
        return True

    def plan(self, catalog: Catalog) -> Plan:
        """Plan where the catalog's checkpoints are loaded. Those that are served stay where they are. Blocking: reads
        the headers of the others' files. Raises CheckpointError for one that no worker may draw."""
        demands = list(demands_of(catalog, self._members, self._replicas))
        alive = self.alive or self.workers
        names = {host.name for host in self.workers}  # workers that have gone keep nothing
        kept = {name: specs for name, specs in self.current.placement.items() if name in names}
        rooms = {
            member.host.name: member.room_bytes
            for member in self._members
            if member.host in alive or member.host.name not in kept  # one that comes is not up yet
        }
        for demand in demands:
            if not demand.workers & rooms.keys():
                why = dict(demand.too_small).get(next(iter(rooms), ""), "DARKROOM_ENGINES says which models each draws")
                raise CheckpointError(f"{demand.specs[0].path}: none of the image workers that run may draw it; {why}")
        too_small: dict[str, dict[CheckpointSpec, str]] = {}
        for demand in demands:
            for name, reason in demand.too_small:
                too_small.setdefault(name, {}).update(dict.fromkeys(demand.specs, reason))
        keys = [weights_key(demand.specs[0]) for demand in demands]
        return Plan(
            catalog.checkpoints,
            place(demands, rooms, kept),
            {key: demand.workers for key, demand in zip(keys, demands, strict=True)},
            {key: demand.bytes for key, demand in zip(keys, demands, strict=True)},
            catalog.upstream_specs,
            too_small,
        )

    async def prepare(self, specs: Sequence[CheckpointSpec], plan: Plan) -> None:
        """Load and warm up new checkpoints on all workers where the plan has them, while jobs go on. A worker that is
        down loads them when it comes up. `unload_except` ends this: with the plan, or with the one before. Raises
        CheckpointError with every error, and WorkerDied."""
        self._prepared = True
        hosts = [host for host in self.alive or self.workers if set(specs) & set(plan.placement[host.name])]
        chosen = [[spec for spec in specs if spec in plan.placement[host.name]] for host in hosts]
        work = [_prepare(host, listed) for host, listed in zip(hosts, chosen, strict=True)]
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        errors: dict[str, list[str]] = {}  # the workers that have each
        for host, outcome in zip(hosts, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            for error in outcome:
                errors.setdefault(error, []).append(host.name)
        if errors:
            told = [f"{each} (on {', '.join(on)})" if len(on) < len(hosts) else each for each, on in errors.items()]
            raise CheckpointError("; ".join(told))
        for host, listed in zip(hosts, chosen, strict=True):
            if any(spec not in host.checkpoints for spec in listed):  # it was replaced while others still loaded
                raise WorkerDied(host.kind)

    def unload_except(self, plan: Plan, *, preload: bool = True, retries: bool = True) -> None:
        """Keep only the plan's checkpoints, which are those of the catalog: workers may evict others. With `preload`
        each worker loads its part of them, now and when it is started again. Failures are forgotten by `retries`."""
        for name, reasons in plan.too_small.items():
            for spec, reason in reasons.items():
                if self.current.too_small.get(name, {}).get(spec) != reason:
                    log.warning("a worker is left out", worker=name, checkpoint=spec.name, reason=reason)
        self.current, self._preloads, self._prepared = plan, preload, False
        for host in self.workers:
            host.unload_except(plan.specs, plan.placement.get(host.name, ()) if preload else (), retries=retries)
        by_url: dict[str, list[CheckpointSpec]] = {url: [] for url in self._upstreams}
        for spec in plan.upstreams:
            if spec.upstream is not None:
                by_url.setdefault(spec.upstream.base_url, []).append(spec)
        for url, specs in by_url.items():
            self._upstream_host(url).unload_except(specs, specs)

    def _upstream_host(self, url: str) -> ImageHost:
        """Return the host of another server, made when it is first named."""
        if url not in self._upstreams:
            if self._open_upstream is None:
                raise ValueError(f"this fleet has no way to {url}")
            host = self._upstreams[url] = self._open_upstream(url)
            if self._starting is not None:
                self._starting.add(task := asyncio.create_task(host.start()))
                task.add_done_callback(self._starting.discard)
        return self._upstreams[url]

    def submit(self, job: ImageJob) -> JobEvents[Event]:
        """Send the job to the worker that is expected to finish it first, and return its events. If that worker can't
        load its checkpoint, or comes up without a device, it goes on to another. What would fail to load on all of them
        is refused. Raises QueueFull."""
        spec, area_px = job.checkpoint, pixels(job)
        if spec.upstream is not None:
            return self._upstream_host(spec.upstream.base_url).submit(job)
        hosts = self._able(spec, area_px)
        host = self._quickest(hosts, job) if hosts else self._longest_untried(spec, area_px)
        if not hosts and host.failures.refuses(spec):
            return host.failures.refuse(spec, partial(self.submit, job))
        events = _submit(host, job)
        events.move = partial(self._submit_elsewhere, job, [host])
        return events

    def _submit_elsewhere(self, job: ImageJob, tried: list[ImageHost], failed: Failed) -> JobEvents[Event] | None:
        """Give a job to a worker that has not failed it; None if there is none. One without a device is not followed by
        one that is waited for, as it may not come back either. Raises QueueFull."""
        spec = job.checkpoint
        hosts = [host for host in self._able(spec, pixels(job)) if host not in tried]
        if failed.code == "worker_died":
            alive = self.alive  # the problem of one that is up is its machine's, and not its own
            hosts = [host for host in hosts if host in alive or host.status.problem is None]
        if failed.movable == "larger":
            most = {member.host: member.most_bytes or member.room_bytes for member in self._members}
            hosts = [host for host in hosts if most.get(host, 0) > most.get(tried[-1], 0)]
        if not hosts or self._starting is None:
            return None
        host = self._quickest(hosts, job)
        reason = (failed.detail or failed.message).partition("\n")[0]
        log.info("a job moves to another worker", job=job.id, worker=tried[-1].name, to=host.name, reason=reason)
        tried.append(host)
        try:
            return _submit(host, job)
        except QueueFull:
            if (events := self._submit_elsewhere(job, tried, failed)) is None:
                raise
            return events

    def cancel(self, job_id: str) -> None:
        """Stop a job within one step. Ids that are not pending are ignored."""
        for host in self.hosts:
            host.cancel(job_id)

    def remaining_s(self, host: ImageHost, at_most_s: float | None = None) -> float:
        """Return the estimated device time of a worker's jobs in seconds, or of those with no more left than
        `at_most_s`: the worker runs the shortest first."""
        left = [share * self._duration_s(host, job) for job, share in host.pending() if isinstance(job, ImageJob)]
        others_s = host.status.sharing.others_jobs * host.speeds.job_s
        return others_s + sum(each for each in left if at_most_s is None or each <= at_most_s)

    def able(self, spec: CheckpointSpec) -> frozenset[str]:
        """Return the names of the workers that may draw with a checkpoint now, as far as is known."""
        return frozenset(host.name for host in self._able(spec))

    def _longest_untried(self, spec: CheckpointSpec, area_px: int) -> ImageHost:
        """Return the worker for a job that all have failed, its checkpoint or its size: the one that may try again, or
        that was not tried for longest."""
        alive, failures = self.alive, {host: host.failures for host in self._allowed(spec)}
        return min(
            failures,
            key=lambda host: (
                failures[host].refuses(spec), host not in alive, failures[host].at(spec, area_px) or 0.0
            ),
        )  # fmt: skip

    def _allowed(self, spec: CheckpointSpec) -> list[ImageHost]:
        allowed = self.current.allowed.get(weights_key(spec))
        return [host for host in self.workers if allowed is None or host.name in allowed] or list(self.workers)

    def _able(self, spec: CheckpointSpec, area_px: int = LOAD) -> list[ImageHost]:
        """Return the workers that may draw with a checkpoint and have not failed to load it, nor at such a size. Those
        that are down, or load it again after the end of the worker before them, are waited for if there are no
        others."""
        alive = self.alive
        mended_at = max((host.failures.mended_at.get(spec, 0.0) for host in self.workers), default=0.0)
        hosts = [host for host in self._allowed(spec) if (host.failures.at(spec, area_px) or 0.0) <= mended_at]
        up = [host for host in hosts if host in alive]
        return [host for host in up if not (host.restarts and spec in host.loading)] or up or hosts

    def _quickest(self, hosts: Sequence[ImageHost], job: ImageJob) -> ImageHost:
        """Return the worker that finishes a job first, its load included, or of several that are as quick the least
        busy one."""
        if len(hosts) == 1:
            return hosts[0]
        end_s = {}
        for host in hosts:
            run_s = self._duration_s(host, job)
            end_s[host.name] = self._load_s(host, job.checkpoint) + self.remaining_s(host, run_s) + run_s
        soonest_s = min(end_s.values())
        quick = [host for host in hosts if end_s[host.name] <= AS_SOON * soonest_s]
        placement = self.current.placement
        return min(quick, key=lambda host: (self.remaining_s(host), job.checkpoint not in placement.get(host.name, ())))

    def _duration_s(self, host: ImageHost, job: ImageJob) -> float:
        unit_s = host.unit_s(job.checkpoint) or self.unit_s(job.checkpoint) or FIRST_UNIT_S
        return work_units(job) * unit_s

    def _load_s(self, host: ImageHost, spec: CheckpointSpec) -> float:
        """Return the seconds that a job waits for its weights. Where others are evicted for them, those are loaded
        again later."""
        if wake_s := host.wake_s(spec):
            return wake_s
        key = weights_key(spec)
        cached = host.status.cached_checkpoints
        found = [each for each in (cached.checkpoints if cached else ()) if weights_key(each.spec) == key]
        if any(each.on_device for each in found):
            return 0.0
        if found:
            return found[0].bytes / RESTORE_BYTES_PER_S
        loaded = [state for other in self.hosts for state in other.checkpoints.values() if _has_weights(state, key)]
        load_s = max((state.load_s for state in loaded if state.load_s is not None), default=FIRST_LOAD_S)
        size = self.current.bytes.get(key, 0)
        fits = cached is None or cached.device_bytes + size <= cached.budget_bytes
        return load_s if fits else 2 * load_s


async def _prepare(host: ImageHost, specs: Sequence[CheckpointSpec]) -> list[str]:
    """Prepare checkpoints one after another, and return the errors. Raises WorkerDied."""
    errors = []
    for spec in specs:
        try:
            await host.prepare(spec)
        except CheckpointError as error:
            errors.append(str(error))
    return errors


def _submit(host: ImageHost, job: ImageJob) -> JobEvents[Event]:
    """Send a job to a worker that is chosen for it, also if its checkpoint has failed to load there: another has loaded
    it since. Raises QueueFull."""
    if host.failures.refuses(job.checkpoint):
        host.failures.forget(job.checkpoint)
    return host.submit(job)


def _has_weights(state: CheckpointState, key: WeightsKey) -> bool:
    return isinstance(state.spec, CheckpointSpec) and weights_key(state.spec) == key
