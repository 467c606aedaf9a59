"""/v1/darkroom: the reports of a key about itself: its limits and money, its usage, its calls, its running jobs."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import Response

from server.accounts.call_log import CallFilter, Outcome
from server.accounts.paging import Page
from server.accounts.usage import UsageFilter
from server.errors import NotFound
from server.flows.operators.csv_text import csv_text
from server.flows.operators.keys import own_key, read_money
from server.flows.operators.reports import call_details, call_entry, usage_columns, usage_report
from server.http.deps import Caller, ServicesDep
from server.http.listings import CSV, Fetch, csv_response, json_response, listing_route
from server.http.openapi import errors
from server.http.queries import CsvDep, PeriodDep, by_parameter, choice, read_grouping
from server.schemas.keys import OwnKey
from server.schemas.reports import CallDetails, CallEntry, CallList, UsageReport
from server.schemas.status import CancelledJob, QueuedJobList
from server.services import Services

router = APIRouter(prefix="/v1/darkroom")

OUTCOMES: tuple[Outcome, ...] = ("succeeded", "refused", "failed")
Status = Annotated[Outcome | None, choice("status", OUTCOMES), Query(description="Only calls that ended so.")]
OfModel = Annotated[str | None, Query(description="Only of this model.")]
Code = Annotated[str | None, Query(description="Only calls that got this error.")]
CallId = Annotated[str, Path(description="The id of the request, of the image call or of the response.")]
JobId = Annotated[str, Path(description="The job's id.")]


@router.get("/me", response_description="The key.")
async def me(key: Caller, services: ServicesDep) -> OwnKey:
    """Show the key.

    Returns the name, the groups, the limits and the money of the key that asks.
    """
    money = (await services.stores.database.in_reader(read_money, services.stores.database))[key.id]
    limiter = services.admission.limiter
    return own_key(key, money, limiter.max_running(key), limiter.running(key))


@router.get("/usage", response_model=UsageReport, response_description="The sums.", responses={**CSV, **errors(400)})
async def own_usage(
    key: Caller,
    services: ServicesDep,
    period: PeriodDep,
    as_csv: CsvDep,
    by: Annotated[str | None, by_parameter("day", "month", "model")] = None,
) -> Response:
    """Show the key's usage.

    Sums the key's charges and tokens, for a period, by day, month or model.
    """
    grouping = read_grouping(by, ("day", "month", "model"))
    wanted, database = UsageFilter(key.id, period=period), services.stores.database
    report = await database.in_reader(usage_report, database, wanted, grouping)
    return usage_answer(report, usage_columns(grouping), as_csv=as_csv)


async def call_filter(period: PeriodDep, status: Status = None, model: OfModel = None, code: Code = None) -> CallFilter:
    """Return the filter of the calls that the query asks for, of any key. Raises BadRequest."""
    return CallFilter(None, status, model, code, period)


CallFilterDep = Annotated[CallFilter, Depends(call_filter)]


@listing_route(router, "/calls", CallList, file="calls", responses=errors(400))
async def own_calls(key: Caller, services: ServicesDep, wanted: CallFilterDep) -> Fetch:
    """List the key's calls.

    Returns a page of the key's calls, those that failed or were refused too.
    """
    return fetch_calls(services, replace(wanted, key_id=key.id))


@router.get("/calls/{call_id}", response_description="The call.", responses=errors(404))
async def own_call(call_id: CallId, key: Caller, services: ServicesDep) -> CallDetails:
    """Show one of the key's calls.

    Returns a call by its `x-request-id` or its job's id, with the prompt and the parameters if the server keeps them.
    """
    return await find_call(services, call_id, key.id)


@router.get("/jobs", response_description="The jobs.")
async def own_jobs(key: Caller, services: ServicesDep) -> QueuedJobList:
    """List the key's jobs.

    Lists the key's image calls, responses and chats that run or wait on this server.
    """
    return QueuedJobList.of(await services.operations.job_queue.jobs_of(key.id))


@router.delete("/jobs/{job_id}", response_description="The job has ended.", responses=errors(404))
async def cancel_own_job(job_id: JobId, key: Caller, services: ServicesDep) -> CancelledJob:
    """Cancel one of the key's jobs.

    Ends a job of the key that runs or waits on this server: a chat by the `x-request-id` of its answer too. Images that
    were charged already stay charged; nothing more is charged.
    """
    await services.operations.job_queue.cancel_own(job_id, key.id)
    return CancelledJob(id=job_id)


async def find_call(services: Services, call_id: str, key_id: str | None) -> CallDetails:
    """Return a call, of this key if it is given. Raises NotFound."""
    call = await services.stores.call_log.in_reader(services.stores.call_log.find, call_id, key_id)
    if call is None:
        raise NotFound(f"There is no call '{call_id[:60]}' here; it may be too old.", code="call_not_found")
    return call_details(call)


def fetch_calls(services: Services, wanted: CallFilter) -> Fetch:
    """Return a function that fetches a page of these calls."""

    def fetch(page: Page) -> list[CallEntry]:
        return [call_entry(call) for call in services.stores.call_log.page(wanted, page)]

    return fetch


def usage_answer(report: UsageReport, columns: list[str], *, as_csv: bool) -> Response:
    """Return the sums as JSON or as a file."""
    if not as_csv:
        return json_response(report)

    async def lines() -> AsyncIterator[str]:
        yield csv_text(columns, (), header=True)
        for row in report.data:
            yield csv_text(columns, [row.model_dump()], header=False)

    return csv_response(lines(), "usage")
