"""/admin/keys and /admin/operators: who may use the server, and who may change it. They need an admin key."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from server.accounts.operators import NameTaken, Operator, create_operator, list_operators, revoke_operator
from server.errors import Conflict, NotFound
from server.flows.operators.keys import KeyAdmin
from server.http import examples
from server.http.deps import ServicesDep
from server.http.openapi import Json, answer, json_body, openapi, parameter
from server.http.operators import OperatorName, operator
from server.schemas.keys import ChangeKey, CreateKey, KeyEntry, KeyList, KeyWithSecret, RotateKey
from server.schemas.operators import CreateOperator, OperatorEntry, OperatorList, OperatorWithSecret
from server.schemas.validation import parse_json, validate

router = APIRouter(prefix="/admin", dependencies=[Depends(operator)])

KEY = parameter("path", "key", "The key's id, its name, or a beginning of either that no other key has.")
READ_ERRORS = (401, 404, 500, 503)


def key_admin(services: ServicesDep) -> KeyAdmin:
    """With the groups of the catalog in use."""
    return KeyAdmin(services.stores.database, services.served.catalog.current.groups)


Keys = Annotated[KeyAdmin, Depends(key_admin)]


@router.get(
    "/keys",
    **openapi(
        "List keys",
        "Lists every API key with its limits, its money and its last use, oldest first. Secrets are not stored.",
        success=answer("The keys.", KeyList),
        errors=[401, 500, 503],
        security="admin_key",
    ),
)
async def list_keys(keys: Keys, services: ServicesDep) -> KeyList:
    """All keys."""
    entries = await services.stores.database.in_reader(keys.list_all)
    return KeyList.of(entries, len(entries))


@router.post(
    "/keys",
    **openapi(
        "Create a key",
        "Makes an API key. Its secret is in this answer only.",
        body=json_body(CreateKey, examples.CREATE_KEY),
        success=answer("The key with its secret.", KeyWithSecret),
        errors=[400, 401, 413, 500, 503],
        security="admin_key",
    ),
)
async def create_key(request: Request, keys: Keys, services: ServicesDep, by: OperatorName) -> KeyWithSecret:
    """A new key."""
    body = validate(CreateKey, await _json(request), strict=True)
    return await services.stores.database.in_writer(keys.create, body, by=by)


@router.get(
    "/keys/{key}",
    **openapi(
        "Show a key",
        "Returns a key with its limits, its money and its last use.",
        parameters=[KEY],
        success=answer("The key.", KeyEntry),
        errors=READ_ERRORS,
        security="admin_key",
    ),
)
async def show_key(key: str, keys: Keys, services: ServicesDep) -> KeyEntry:
    """One key."""
    return await services.stores.database.in_reader(keys.show, key)


@router.patch(
    "/keys/{key}",
    **openapi(
        "Change a key",
        "Changes what is sent, and leaves the rest as it is. Null takes a limit away.",
        parameters=[KEY],
        body=json_body(ChangeKey, examples.CHANGE_KEY),
        success=answer("The key after that.", KeyEntry),
        errors=[400, 413, *READ_ERRORS],
        security="admin_key",
    ),
)
async def change_key(key: str, request: Request, keys: Keys, services: ServicesDep, by: OperatorName) -> KeyEntry:
    """Other limits, groups, name or expiry."""
    sent = await _json(request)
    body = validate(ChangeKey, sent, strict=True)
    return await services.stores.database.in_writer(keys.change, key, body, sent, by=by)


@router.post(
    "/keys/{key}/rotate",
    **openapi(
        "Rotate a key's secret",
        "Makes a new secret for a key. The old one works for a while, so that its users can change over.",
        parameters=[KEY],
        body=json_body(RotateKey, examples.ROTATE_KEY),
        success=answer("The key with its new secret.", KeyWithSecret),
        errors=[400, 409, 413, *READ_ERRORS],
        security="admin_key",
    ),
)
async def rotate_key(key: str, request: Request, keys: Keys, services: ServicesDep, by: OperatorName) -> KeyWithSecret:
    """A new secret, with an overlap."""
    body = validate(RotateKey, await _json(request), strict=True)
    return await services.stores.database.in_writer(keys.rotate, key, body.overlap_s, by=by)


@router.delete(
    "/keys/{key}",
    **openapi(
        "Revoke a key",
        "Ends a key at once. Its charges stay in the ledger.",
        parameters=[KEY],
        success=answer("The key after that.", KeyEntry),
        errors=READ_ERRORS,
        security="admin_key",
    ),
)
async def revoke_key(key: str, keys: Keys, services: ServicesDep, by: OperatorName) -> KeyEntry:
    """No more calls with it."""
    return await services.stores.database.in_writer(keys.revoke, key, by=by)


@router.get(
    "/operators",
    **openapi(
        "List operators",
        "Lists the admin keys beside that of the server's home, which has the name `admin`.",
        success=answer("The operators.", OperatorList),
        errors=[401, 500, 503],
        security="admin_key",
    ),
)
async def operators(services: ServicesDep) -> OperatorList:
    """All operators."""
    found = await services.stores.database.in_reader(list_operators, services.stores.database)
    return OperatorList.of([OperatorEntry(**_values(each)) for each in found], len(found))


@router.post(
    "/operators",
    **openapi(
        "Create an operator",
        "Makes an admin key with a name, which the audit shows beside every change. Its secret is in this answer only.",
        body=json_body(CreateOperator, examples.CREATE_OPERATOR),
        success=answer("The operator with the secret.", OperatorWithSecret),
        errors=[400, 401, 409, 413, 500, 503],
        security="admin_key",
    ),
)
async def new_operator(request: Request, services: ServicesDep, by: OperatorName) -> OperatorWithSecret:
    """Another admin key."""
    body, database = validate(CreateOperator, await _json(request), strict=True), services.stores.database
    try:
        created, secret = await database.in_writer(create_operator, database, body.name, by=by)
    except NameTaken as error:
        raise Conflict(f"There is an operator '{body.name}' already.", 1, code="name_taken") from error
    return OperatorWithSecret(**_values(created), secret=secret)


@router.delete(
    "/operators/{name}",
    **openapi(
        "Revoke an operator",
        "Ends an admin key at once. What its operator did stays in the audit.",
        parameters=[parameter("path", "name", "The operator's id or name.")],
        success=answer("The operator after that.", OperatorEntry),
        errors=READ_ERRORS,
        security="admin_key",
    ),
)
async def end_operator(name: str, services: ServicesDep, by: OperatorName) -> OperatorEntry:
    """No more changes with it."""
    revoked = await services.stores.database.in_writer(revoke_operator, services.stores.database, name, by=by)
    if revoked is None:
        raise NotFound(f"There is no operator '{name[:60]}'.", param="name", code="operator_not_found")
    return OperatorEntry(**_values(revoked))


async def _json(request: Request) -> Json:
    return parse_json(await request.body())


def _values(operator: Operator) -> dict[str, Any]:
    return {name: getattr(operator, name) for name in ("id", "name", "tail", "created_at", "revoked_at")}
