"""/admin/usage, /ledger, /calls, /refusals and /audit: who used, paid, failed and changed what. They need an admin
key."""

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from server.accounts import report, results
from server.accounts.audit import AuditFilter, list_changes
from server.accounts.call_log import CallFilter
from server.accounts.paging import Page
from server.accounts.refusals import list_refusals
from server.accounts.usage import GROUPINGS, UsageFilter
from server.flows.operators.periods import read_period
from server.flows.operators.reports import (
    audit_record,
    key_names,
    ledger_entries,
    refusal_entries,
    usage_columns,
    usage_report,
)
from server.http.deps import ServicesDep
from server.http.openapi import Json, answer, openapi, parameter
from server.http.operators import operator
from server.http.paging import page_parameters
from server.http.queries import (
    FORMAT,
    PERIOD,
    PageDep,
    by_parameter,
    csv_download,
    read_grouping,
    read_listing,
    wants_csv,
)
from server.routes.account import CALL_FILTERS, CSV, OUTCOMES, calls_answer, find_call, usage_answer
from server.routes.operator_keys import Keys
from server.schemas.operators import (
    AuditList,
    AuditRecord,
    LedgerCheck,
    LedgerEntry,
    LedgerEntryList,
    RefusalEntry,
    RefusalList,
)
from server.schemas.usage import CallDetails, CallList, UsageReport
from server.schemas.validation import one_of

router = APIRouter(prefix="/admin", dependencies=[Depends(operator)])

KEY = parameter("query", "key", "Only of this key: its id, name, or a unique beginning of either.")
ERRORS = (400, 401, 404, 500, 503)


def _json_or_csv(description: str, model: type) -> Json:
    described = answer(description, model)
    return {**described, "content": {**described["content"], **CSV}}


@router.get(
    "/usage",
    **openapi(
        "Show usage",
        "Sums what keys were charged and their tokens, for a period, by key, day, month and model. The sums of every "
        "grouping are equal to those of the ledger.",
        parameters=[*PERIOD, KEY, parameter("query", "model", "Only of this model."), by_parameter(*GROUPINGS), FORMAT],
        success=_json_or_csv("The sums.", UsageReport),
        errors=ERRORS,
        security="admin_key",
    ),
)
async def show_usage(
    keys: Keys,
    services: ServicesDep,
    key: str | None = None,
    model: str | None = None,
    since: str | None = Query(None, alias="from"),
    to: str | None = None,
    by: str | None = None,
    format: str | None = None,  # as the query names it
) -> Response:
    """Who used what."""
    wanted = UsageFilter(await _key_id(keys, services, key), model, read_period(since, to))
    grouping = read_grouping(by, GROUPINGS)
    sums = await services.stores.database.in_reader(usage_report, services.stores.database, wanted, grouping)
    return usage_answer(sums, usage_columns(grouping), as_csv=wants_csv(format))


@router.get(
    "/ledger",
    **openapi(
        "List charges",
        "Returns a page of the ledger, or all of it as a file. Charges are never changed or deleted.",
        parameters=[
            *PERIOD,
            KEY,
            parameter("query", "model", "Only of this model."),
            *page_parameters("charge"),
            FORMAT,
        ],
        success=_json_or_csv("A page of charges.", LedgerEntryList),
        errors=ERRORS,
        security="admin_key",
    ),
)
async def list_charges(
    keys: Keys,
    services: ServicesDep,
    page: PageDep,
    key: str | None = None,
    model: str | None = None,
    since: str | None = Query(None, alias="from"),
    to: str | None = None,
    format: str | None = None,  # as the query names it
) -> Response:
    """The ledger."""
    key_id, period, database = await _key_id(keys, services, key), read_period(since, to), services.stores.database
    names = await database.in_reader(key_names, database)

    def fetch(page: Page) -> list[LedgerEntry]:
        found = report.entries(
            database, key_id, page.limit + 1, model=model, period=period, order=page.order, after=page.after
        )
        return ledger_entries(found, names)

    if wants_csv(format):
        return csv_download(database, LedgerEntry, fetch, "ledger")
    listing = await read_listing(database, LedgerEntryList, fetch, page)
    return Response(listing.model_dump_json(), media_type="application/json")


@router.post(
    "/ledger/check",
    **openapi(
        "Check the ledger",
        "Checks that charges, holds, results and their files agree.",
        success=answer("The problems, if there are any.", LedgerCheck),
        errors=[401, 500, 503],
        security="admin_key",
    ),
)
async def check_ledger(services: ServicesDep) -> LedgerCheck:
    """As `darkroom ledger --check`."""
    database = services.stores.database
    problems = await database.in_reader(report.check, database)
    problems += await database.in_reader(results.check, database, services.stores.files.exists)
    return LedgerCheck(clean=not problems, problems=problems)


@router.get(
    "/calls",
    **openapi(
        "List calls",
        "Returns a page of all calls, those that failed or were refused too, or all of them as a file.",
        parameters=[KEY, *CALL_FILTERS, *page_parameters("call"), FORMAT],
        success=_json_or_csv("A page of calls.", CallList),
        errors=ERRORS,
        security="admin_key",
    ),
)
async def list_calls(
    keys: Keys,
    services: ServicesDep,
    page: PageDep,
    key: str | None = None,
    status: str | None = None,
    model: str | None = None,
    code: str | None = None,
    since: str | None = Query(None, alias="from"),
    to: str | None = None,
    format: str | None = None,  # as the query names it
) -> Response:
    """Every call."""
    outcome = one_of(OUTCOMES, status, "status") if status else None
    key_id = await _key_id(keys, services, key)
    wanted = CallFilter(key_id, outcome, model, code, read_period(since, to))
    return await calls_answer(services, wanted, page, as_csv=wants_csv(format))


@router.get(
    "/calls/{call_id}",
    **openapi(
        "Show a call",
        "Returns a call by its `x-request-id` or its job's id, with the prompt and the parameters if the server keeps "
        "them.",
        parameters=[parameter("path", "call_id", "The id of the request, of the image call or of the response.")],
        success=answer("The call.", CallDetails),
        errors=[401, 404, 500, 503],
        security="admin_key",
    ),
)
async def show_call(call_id: str, services: ServicesDep) -> CallDetails:
    """One call."""
    return await find_call(services, call_id, None)


@router.get(
    "/refusals",
    **openapi(
        "List refusals",
        "Returns a page of what the moderation policy refused, and why. Prompts and pictures are not stored with it.",
        parameters=[KEY, *page_parameters("refusal"), FORMAT],
        success=_json_or_csv("A page of refusals.", RefusalList),
        errors=ERRORS,
        security="admin_key",
    ),
)
async def refusals(
    keys: Keys,
    services: ServicesDep,
    page: PageDep,
    key: str | None = None,
    format: str | None = None,  # as the query names it
) -> Response:
    """What was refused."""
    key_id, database = await _key_id(keys, services, key), services.stores.database
    names = await database.in_reader(key_names, database)

    def fetch(page: Page) -> list[RefusalEntry]:
        found = list_refusals(database, key_id, page.limit + 1, order=page.order, after=page.after)
        return refusal_entries(found, names)

    if wants_csv(format):
        return csv_download(database, RefusalEntry, fetch, "refusals")
    listing = await read_listing(database, RefusalList, fetch, page)
    return Response(listing.model_dump_json(), media_type="application/json")


@router.get(
    "/audit",
    **openapi(
        "List changes",
        "Returns a page of the changes that operators made, by HTTP or on the command line.",
        parameters=[
            parameter("query", "operator", "Only changes by this operator, such as `admin` or `cli:root`."),
            parameter("query", "action", "Only changes of this kind, such as `key.create`."),
            parameter("query", "target", "Only changes of this key's id, model, or whatever was changed."),
            *PERIOD,
            *page_parameters("change"),
            FORMAT,
        ],
        success=_json_or_csv("A page of changes.", AuditList),
        errors=[400, 401, 500, 503],
        security="admin_key",
    ),
)
async def audit(
    services: ServicesDep,
    page: PageDep,
    operator: str | None = None,
    action: str | None = None,
    target: str | None = None,
    since: str | None = Query(None, alias="from"),
    to: str | None = None,
    format: str | None = None,  # as the query names it
) -> Response:
    """Who changed what."""
    wanted, database = AuditFilter(operator, action, target, read_period(since, to)), services.stores.database

    def fetch(page: Page) -> list[AuditRecord]:
        return [audit_record(entry) for entry in list_changes(database, wanted, page)]

    if wants_csv(format):
        return csv_download(database, AuditRecord, fetch, "audit")
    listing = await read_listing(database, AuditList, fetch, page)
    return Response(listing.model_dump_json(), media_type="application/json")


async def _key_id(keys: Keys, services: ServicesDep, key: str | None) -> str | None:
    """Raises NotFound."""
    return None if key is None else (await services.stores.database.in_reader(keys.find, key)).id
