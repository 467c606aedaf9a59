"""The moderation policy for operators: read again without a restart, and tried without a call."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import structlog

from pipelines.checkpoints.errors import CheckpointError
from pipelines.protocol.classify import ClassifyEvent, ClassifyJob
from server.accounts.audit import record_change
from server.accounts.db import Database
from server.backends.engine_host import EngineHost
from server.backends.worker_checkpoints import WorkerDied
from server.errors import BadRequest, Conflict
from server.flows.moderation import ModerationContext, Moderator
from server.moderation.policy import Policy, PolicyError
from server.parts import Served
from server.schemas.moderation import ModerationTest, ModerationTestRequest, PolicyFinding, PolicySummary

log = structlog.stdlib.get_logger("darkroom.moderation")


class PolicyAdmin:
    """The moderation policy for operators. `path` is the policy file, if the server has one, and `load` reads one."""

    def __init__(
        self,
        served: Served,
        moderator: Moderator,
        engine: EngineHost[ClassifyJob, ClassifyEvent],
        database: Database,
        *,
        path: Path | None,
        load: Callable[..., Policy],
    ) -> None:
        self._policy = served.policy
        self._moderator = moderator
        self._engine = engine
        self._catalog = served.catalog
        self._database = database
        self._path = path
        self._load_policy = load

    def describe(self) -> PolicySummary:
        """Return a summary of the policy in use."""
        return self._summary(self._policy.current)

    async def reload(self, *, by: str) -> PolicySummary:
        """Read the policy file again. Raises BadRequest and Conflict, and then nothing has changed."""
        if self._path is None:
            raise BadRequest("The server has no policy file: set DARKROOM_MODERATION and restart it.")
        async with self._policy.lock:
            before, after = self._policy.current, await self._load(self._path)
            if after.classifiers and not before.classifiers:
                raise BadRequest(
                    "Nothing has changed. The server runs without classifiers; restart it to add the first one."
                )
            try:
                for spec in after.checkpoints:
                    if spec not in before.checkpoints:
                        await self._engine.prepare(spec)
            except CheckpointError as error:
                raise BadRequest(f"Nothing has changed. {error}", code="checkpoint_failed") from error
            except WorkerDied as error:
                raise Conflict(f"Nothing has changed: {error}. The server's log says why; try again.", 10) from error
            self._policy.current = after
            if before.classifiers:
                self._engine.unload_except(after.checkpoints, after.checkpoints)
        summary = self._summary(after)
        log.info("policy reloaded", rules=summary.rules, classifiers=summary.classifiers)
        details = {"rules": summary.rules, "classifiers": summary.classifiers}
        await self._database.in_writer(record_change, self._database, by, "policy.reload", str(self._path), **details)
        return summary

    async def test(self, request: ModerationTestRequest) -> ModerationTest:
        """Return the findings of the policy in use, or of a draft of one, in a text. Nothing is recorded. Raises
        BadRequest."""
        policy = self._policy.current
        if request.policy_toml is not None:
            policy = await self._draft(request.policy_toml)
        groups = self._catalog.current.groups
        if request.group is not None and request.group not in groups:
            known = ", ".join(sorted(groups))
            raise BadRequest(f"Unknown group '{request.group}'. The catalog has: {known}.", param="group")
        asked = [request.group] if request.group is not None else sorted(groups)
        loaded = set(self._policy.current.checkpoints)
        findings: dict[PolicyFinding, None] = {}
        for group in asked:
            context = ModerationContext("test", "", "test", "", group, low=request.low)
            for finding in await self._moderator.search(context, request.stage, [request.text], policy, loaded):
                findings[PolicyFinding(finding.policy, finding.category, finding.evidence)] = None
        skipped = sorted({spec.name for spec in policy.checkpoints if spec not in loaded})
        return ModerationTest(flagged=bool(findings), findings=list(findings), skipped_classifiers=skipped)

    async def _draft(self, text: str) -> Policy:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "draft.toml"
            await asyncio.to_thread(path.write_text, text)
            try:
                return await self._load(path)
            except BadRequest as error:
                message = error.message.replace(f"{path}: ", "").replace(str(path), "the draft")
                raise BadRequest(message, param="policy_toml", code=error.code) from error

    async def _load(self, path: Path) -> Policy:
        try:
            return await asyncio.to_thread(self._load_policy, path, groups=self._catalog.current.groups)
        except PolicyError as error:
            raise BadRequest(f"Nothing has changed. The policy is refused:\n{error}", code="invalid_policy") from error

    def _summary(self, policy: Policy) -> PolicySummary:
        return PolicySummary(
            path=str(self._path) if self._path else None,
            rules=[rule.name for rule in policy.rules],
            classifiers=[spec.name for spec in policy.checkpoints],
        )
