"""/v1/darkroom: what a key may know of itself: its limits and money, its usage, its calls, what it has running."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Query
from fastapi.responses import Response

from server.accounts.call_log import CallFilter, Outcome
from server.accounts.paging import Page
from server.accounts.usage import UsageFilter
from server.errors import NotFound
from server.flows.operators.csv_text import csv_text
from server.flows.operators.keys import own_key, read_money
from server.flows.operators.periods import read_period
from server.flows.operators.reports import call_details, call_entry, usage_columns, usage_report
from server.http.deps import Caller, ServicesDep
from server.http.openapi import Json, answer, openapi, parameter
from server.http.paging import page_parameters
from server.http.queries import (
    FORMAT,
    PERIOD,
    PageDep,
    by_parameter,
    csv_download,
    csv_response,
    read_grouping,
    read_listing,
    wants_csv,
)
from server.schemas.keys import OwnKey
from server.schemas.queue import CancelledJob, QueuedJobList
from server.schemas.usage import CallDetails, CallEntry, CallList, UsageReport
from server.schemas.validation import one_of
from server.services import Services

router = APIRouter(prefix="/v1/darkroom")

OUTCOMES: tuple[Outcome, ...] = ("succeeded", "refused", "failed")
CSV: Json = answer("The same as a file.", {"type": "string"}, "text/csv")["content"]
CALL_FILTERS = [
    parameter("query", "status", "Only calls that ended so.", enum=[*OUTCOMES]),
    parameter("query", "model", "Only calls of this model."),
    parameter("query", "code", "Only calls that got this error."),
    *PERIOD,
]


@router.get(
    "/me",
    **openapi(
        "Show the key",
        "Returns the name, the groups, the limits and the money of the key that asks.",
        success=answer("The key.", OwnKey),
        errors=[401, 500, 503],
    ),
)
async def me(key: Caller, services: ServicesDep) -> OwnKey:
    """The key that asks."""
    money = (await services.stores.database.in_reader(read_money, services.stores.database))[key.id]
    limiter = services.admission.limiter
    return own_key(key, money, limiter.max_running(key), limiter.running(key))


@router.get(
    "/usage",
    **openapi(
        "Show the key's usage",
        "Sums what the key was charged and its tokens, for a period, by day, month or model.",
        parameters=[*PERIOD, by_parameter("day", "month", "model"), FORMAT],
        success={**answer("The sums.", UsageReport), "content": {**answer("", UsageReport)["content"], **CSV}},
        errors=[400, 401, 500, 503],
    ),
)
async def own_usage(
    key: Caller,
    services: ServicesDep,
    since: str | None = Query(None, alias="from"),
    to: str | None = None,
    by: str | None = None,
    format: str | None = None,  # as the query names it
) -> Response:
    """What the key has used."""
    wanted = UsageFilter(key.id, None, read_period(since, to))
    grouping = read_grouping(by, ("day", "month", "model"))
    report = await services.stores.database.in_reader(usage_report, services.stores.database, wanted, grouping)
    return usage_answer(report, usage_columns(grouping), as_csv=wants_csv(format))


@router.get(
    "/calls",
    **openapi(
        "List the key's calls",
        "Returns a page of the key's calls, those that failed or were refused too.",
        parameters=[*CALL_FILTERS, *page_parameters("call"), FORMAT],
        success={**answer("A page of calls.", CallList), "content": {**answer("", CallList)["content"], **CSV}},
        errors=[400, 401, 500, 503],
    ),
)
async def own_calls(
    key: Caller,
    services: ServicesDep,
    page: PageDep,
    status: str | None = None,
    model: str | None = None,
    code: str | None = None,
    since: str | None = Query(None, alias="from"),
    to: str | None = None,
    format: str | None = None,  # as the query names it
) -> Response:
    """The key's calls."""
    outcome = one_of(OUTCOMES, status, "status") if status else None
    return await calls_answer(
        services, CallFilter(key.id, outcome, model, code, read_period(since, to)), page, as_csv=wants_csv(format)
    )


@router.get(
    "/calls/{call_id}",
    **openapi(
        "Show one of the key's calls",
        "Returns a call by its `x-request-id` or its job's id, with the prompt and the parameters if the server keeps "
        "them.",
        parameters=[parameter("path", "call_id", "The id of the request, of the image call or of the response.")],
        success=answer("The call.", CallDetails),
        errors=[401, 404, 500, 503],
    ),
)
async def own_call(call_id: str, key: Caller, services: ServicesDep) -> CallDetails:
    """One call."""
    return await find_call(services, call_id, key.id)


@router.get(
    "/jobs",
    **openapi(
        "List the key's jobs",
        "Lists the key's image calls, responses and chats that run or wait on this server.",
        success=answer("The jobs.", QueuedJobList),
        errors=[401, 500, 503],
    ),
)
async def own_jobs(key: Caller, services: ServicesDep) -> QueuedJobList:
    """What the key has running."""
    jobs = await services.operations.job_queue.jobs_of(key.id)
    return QueuedJobList.of(jobs, len(jobs))


@router.delete(
    "/jobs/{job_id}",
    **openapi(
        "Cancel one of the key's jobs",
        "Ends a job of the key that runs or waits on this server: a chat by the `x-request-id` of its answer too. What "
        "it has not been charged for yet, it is not.",
        parameters=[parameter("path", "job_id", "The job's id.")],
        success=answer("The job has ended.", CancelledJob),
        errors=[401, 404, 500, 503],
    ),
)
async def cancel_own_job(job_id: str, key: Caller, services: ServicesDep) -> CancelledJob:
    """End one of the key's jobs."""
    await services.operations.job_queue.cancel_own(job_id, key.id)
    return CancelledJob(id=job_id)


async def find_call(services: Services, call_id: str, key_id: str | None) -> CallDetails:
    """Raises NotFound."""
    call = await services.stores.call_log.in_reader(services.stores.call_log.find, call_id, key_id)
    if call is None:
        raise NotFound(f"There is no call '{call_id[:60]}' here; it may be too old.", code="call_not_found")
    return call_details(call)


async def calls_answer(services: Services, wanted: CallFilter, page: Page, *, as_csv: bool) -> Response:
    """A page of calls, or all of them as a file."""

    def fetch(page: Page) -> list[CallEntry]:
        return [call_entry(call) for call in services.stores.call_log.page(wanted, page)]

    if as_csv:
        return csv_download(services.stores.database, CallEntry, fetch, "calls")
    listing = await read_listing(services.stores.database, CallList, fetch, page)
    return Response(listing.model_dump_json(), media_type="application/json")


def usage_answer(report: UsageReport, columns: list[str], *, as_csv: bool) -> Response:
    """The sums as JSON or as a file."""
    if not as_csv:
        return Response(report.model_dump_json(), media_type="application/json")

    async def lines() -> AsyncIterator[str]:
        yield csv_text(columns, (), header=True)
        for row in report.data:
            yield csv_text(columns, [row.model_dump()], header=False)

    return csv_response(lines(), "usage")
