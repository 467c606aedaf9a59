"""/admin/sleep and /admin/wake: the device for others, and back. They need an admin key."""

from typing import Annotated

from fastapi import APIRouter, Depends

from server.http import examples
from server.http.bodies import JsonBody
from server.http.deps import ServicesDep
from server.http.openapi import errors
from server.http.operators import OperatorName, operator
from server.schemas.admin import SleepingWorkers, SleepRequest, WakeRequest

Sleep = Annotated[SleepRequest, Depends(JsonBody(SleepRequest, examples.SLEEP))]
Wake = Annotated[WakeRequest, Depends(JsonBody(WakeRequest, examples.WAKE))]
router = APIRouter(prefix="/admin", dependencies=[Depends(operator)])


@router.post("/sleep", response_description="The workers.", responses=errors(400, 409))
async def sleep(body: Sleep, services: ServicesDep, by: OperatorName) -> SleepingWorkers:
    """Give the device back.

    Moves all weights off the device: to the disk, which ends the workers' processes, or to the host's memory. A worker
    with jobs ends them first. Calls are taken as ever: the first one wakes its worker, and its answer says in
    `x-darkroom-wake-s` how long that takes.
    """
    return SleepingWorkers.of(await services.operations.sleeper.sleep(body.workers, body.to, by=by))


@router.post("/wake", response_description="The workers.", responses=errors(400, 409))
async def wake(body: Wake, services: ServicesDep, by: OperatorName) -> SleepingWorkers:
    """Take the device again.

    Loads what has left the device, before a call needs it. It answers at once: `wake_s` estimates how long that takes.
    """
    return SleepingWorkers.of(await services.operations.sleeper.wake(body.workers, by=by))
