"""/admin/usage, /ledger, /calls, /refusals and /audit: usage, charges, calls, refusals and changes. They need an admin
key."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from server.accounts import report, results
from server.accounts.audit import AuditFilter, list_changes
from server.accounts.paging import Page
from server.accounts.refusals import list_refusals
from server.accounts.teams import team_names
from server.accounts.usage import GROUPINGS, UsageFilter
from server.flows.operators.reports import (
    audit_record,
    key_names,
    ledger_entries,
    refusal_entries,
    usage_columns,
    usage_report,
)
from server.flows.operators.teams import find_team
from server.http.deps import ServicesDep
from server.http.listings import CSV, Fetch, listing_route
from server.http.openapi import errors
from server.http.operators import operator
from server.http.queries import CsvDep, PeriodDep, by_parameter, read_grouping
from server.routes.account import CallFilterDep, CallId, OfModel, fetch_calls, find_call, usage_answer
from server.routes.operator_keys import Keys
from server.schemas.reports import (
    AuditList,
    AuditRecord,
    CallDetails,
    CallList,
    LedgerCheck,
    LedgerEntry,
    LedgerEntryList,
    RefusalEntry,
    RefusalList,
    UsageReport,
)

router = APIRouter(prefix="/admin", dependencies=[Depends(operator)])

OfKey = Annotated[str | None, Query(description="Only of this key: its id, name, or a unique beginning of either.")]
OfTeam = Annotated[str | None, Query(description="Only of this team, by its id or name: what keys did while in it.")]
OfOperator = Annotated[str | None, Query(description="Only changes by this operator, such as `admin` or `cli:root`.")]
OfAction = Annotated[str | None, Query(description="Only changes of this kind, such as `key.create`.")]
OfTarget = Annotated[str | None, Query(description="Only changes of this key's id, model, or whatever was changed.")]


async def filtered_key(keys: Keys, services: ServicesDep, key: OfKey = None) -> str | None:
    """Return the id of the key that the query names, if it names one. Raises NotFound."""
    return None if key is None else (await services.stores.database.in_reader(keys.find, key)).id


async def filtered_team(services: ServicesDep, team: OfTeam = None) -> str | None:
    """Return the id of the team that the query names, if it names one. Raises NotFound."""
    database = services.stores.database
    return None if team is None else (await database.in_reader(find_team, database, team)).id


TeamIdDep = Annotated[str | None, Depends(filtered_team)]
KeyIdDep = Annotated[str | None, Depends(filtered_key)]


@router.get(
    "/usage", response_model=UsageReport, response_description="The sums.", responses={**CSV, **errors(400, 404)}
)
async def show_usage(
    services: ServicesDep,
    key_id: KeyIdDep,
    team_id: TeamIdDep,
    period: PeriodDep,
    as_csv: CsvDep,
    model: OfModel = None,
    by: Annotated[str | None, by_parameter(*GROUPINGS)] = None,
) -> Response:
    """Show usage.

    Sums the keys' charges and tokens, for a period, by team, key, day, month and model. The sums of every grouping
    are equal to those of the ledger.
    """
    wanted, database = UsageFilter(key_id, model, period, team_id), services.stores.database
    grouping = read_grouping(by, GROUPINGS)
    sums = await database.in_reader(usage_report, database, wanted, grouping)
    return usage_answer(sums, usage_columns(grouping), as_csv=as_csv)


@listing_route(router, "/ledger", LedgerEntryList, file="ledger", responses=errors(400, 404))
async def list_charges(
    services: ServicesDep, key_id: KeyIdDep, team_id: TeamIdDep, period: PeriodDep, model: OfModel = None
) -> Fetch:
    """List charges.

    Returns a page of the ledger, or all of it as a file. Charges are never changed or deleted.
    """
    database = services.stores.database
    names = await database.in_reader(key_names, database)
    teams = await database.in_reader(team_names, database)

    def fetch(page: Page) -> list[LedgerEntry]:
        found = report.entries(database, key_id, page, team_id=team_id, model=model, period=period)
        return ledger_entries(found, names, teams)

    return fetch


@router.post("/ledger/check", response_description="The problems, if there are any.")
async def check_ledger(services: ServicesDep) -> LedgerCheck:
    """Check the ledger.

    Checks that charges, holds, results and their files agree.
    """
    database = services.stores.database
    problems = await database.in_reader(report.check, database)
    problems += await database.in_reader(results.check, database, services.stores.files.exists)
    return LedgerCheck(clean=not problems, problems=problems)


@listing_route(router, "/calls", CallList, file="calls", responses=errors(400, 404))
async def list_calls(services: ServicesDep, key_id: KeyIdDep, wanted: CallFilterDep) -> Fetch:
    """List calls.

    Returns a page of all calls, those that failed or were refused too, or all of them as a file.
    """
    return fetch_calls(services, replace(wanted, key_id=key_id))


@router.get("/calls/{call_id}", response_description="The call.", responses=errors(404))
async def show_call(call_id: CallId, services: ServicesDep) -> CallDetails:
    """Show a call.

    Returns a call by its `x-request-id` or its job's id, with the prompt and the parameters if the server keeps them.
    """
    return await find_call(services, call_id, None)


@listing_route(router, "/refusals", RefusalList, file="refusals", responses=errors(400, 404))
async def refusals(services: ServicesDep, key_id: KeyIdDep) -> Fetch:
    """List refusals.

    Returns a page of the moderation policy's refusals, with their reasons. Prompts and images are not stored with it.
    """
    database = services.stores.database
    names = await database.in_reader(key_names, database)

    def fetch(page: Page) -> list[RefusalEntry]:
        return refusal_entries(list_refusals(database, key_id, page), names)

    return fetch


@listing_route(router, "/audit", AuditList, file="audit", responses=errors(400))
async def audit(
    services: ServicesDep,
    period: PeriodDep,
    operator: OfOperator = None,
    action: OfAction = None,
    target: OfTarget = None,
) -> Fetch:
    """List changes.

    Returns a page of the changes that operators made, by HTTP or on the command line.
    """
    wanted, database = AuditFilter(operator, action, target, period), services.stores.database

    def fetch(page: Page) -> list[AuditRecord]:
        return [audit_record(entry) for entry in list_changes(database, wanted, page)]

    return fetch
