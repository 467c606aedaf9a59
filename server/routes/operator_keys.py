"""/admin/keys and /admin/operators: who may use the server, and who may change it. They need an admin key."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from server.accounts.operators import NameTaken, create_operator, list_operators, revoke_operator
from server.errors import Conflict, NotFound
from server.flows.operators.keys import KeyAdmin
from server.http import examples
from server.http.bodies import JsonBody
from server.http.deps import ServicesDep
from server.http.openapi import errors, json_body
from server.http.operators import OperatorName, operator
from server.schemas.keys import ChangeKey, CreateKey, KeyEntry, KeyList, KeyWithSecret, RotateKey
from server.schemas.reports import CreateOperator, OperatorEntry, OperatorList, OperatorWithSecret
from server.schemas.validation import parse_json, validate

router = APIRouter(prefix="/admin", dependencies=[Depends(operator)])

KeyRef = Annotated[str, Path(description="The key's id, its name, or a beginning of either that no other key has.")]
OperatorRef = Annotated[str, Path(description="The operator's id or name.")]
NewKey = Annotated[CreateKey, Depends(JsonBody(CreateKey, examples.CREATE_KEY))]
Rotation = Annotated[RotateKey, Depends(JsonBody(RotateKey, examples.ROTATE_KEY))]
NewOperator = Annotated[CreateOperator, Depends(JsonBody(CreateOperator, examples.CREATE_OPERATOR))]


def key_admin(services: ServicesDep) -> KeyAdmin:
    """Return the administration of keys, with the groups of the catalog in use."""
    return KeyAdmin(services.stores.database, services.served.catalog.current.groups)


Keys = Annotated[KeyAdmin, Depends(key_admin)]


@router.get("/keys", response_description="The keys.")
async def list_keys(keys: Keys, services: ServicesDep) -> KeyList:
    """List keys.

    Lists every API key with its limits, its money and its last use, oldest first. Secrets are not stored.
    """
    return KeyList.of(await services.stores.database.in_reader(keys.list_all))


@router.post("/keys", response_description="The key with its secret.")
async def create_key(body: NewKey, keys: Keys, services: ServicesDep, by: OperatorName) -> KeyWithSecret:
    """Create a key.

    Makes an API key. Its secret is in this answer only.
    """
    return await services.stores.database.in_writer(keys.create, body, by=by)


@router.get("/keys/{key}", response_description="The key.", responses=errors(404))
async def show_key(key: KeyRef, keys: Keys, services: ServicesDep) -> KeyEntry:
    """Show a key.

    Returns a key with its limits, its money and its last use.
    """
    return await services.stores.database.in_reader(keys.show, key)


@router.patch(
    "/keys/{key}",
    response_description="The key after that.",
    responses=errors(400, 404, 413),
    openapi_extra={"requestBody": json_body(ChangeKey, examples.CHANGE_KEY)},
)
async def change_key(key: KeyRef, request: Request, keys: Keys, services: ServicesDep, by: OperatorName) -> KeyEntry:
    """Change a key.

    Changes the fields that are sent, and leaves the rest as it is. Null takes a limit away.
    """
    sent = parse_json(await request.body())
    body = validate(ChangeKey, sent, strict=True)
    return await services.stores.database.in_writer(keys.change, key, body, sent, by=by)


@router.post("/keys/{key}/rotate", response_description="The key with its new secret.", responses=errors(404, 409))
async def rotate_key(key: KeyRef, body: Rotation, keys: Keys, services: ServicesDep, by: OperatorName) -> KeyWithSecret:
    """Rotate a key's secret.

    Makes a new secret for a key. The old one works for a while, so that its users can change over.
    """
    return await services.stores.database.in_writer(keys.rotate, key, body.overlap_s, by=by)


@router.delete("/keys/{key}", response_description="The key after that.", responses=errors(404))
async def revoke_key(key: KeyRef, keys: Keys, services: ServicesDep, by: OperatorName) -> KeyEntry:
    """Revoke a key.

    Ends a key at once. Its charges stay in the ledger.
    """
    return await services.stores.database.in_writer(keys.revoke, key, by=by)


@router.get("/operators", response_description="The operators.")
async def operators(services: ServicesDep) -> OperatorList:
    """List operators.

    Lists the admin keys beside that of the server's home, which has the name `admin`.
    """
    found = await services.stores.database.in_reader(list_operators, services.stores.database)
    return OperatorList.of([OperatorEntry.describe(each) for each in found])


@router.post("/operators", response_description="The operator with the secret.", responses=errors(409))
async def new_operator(body: NewOperator, services: ServicesDep, by: OperatorName) -> OperatorWithSecret:
    """Create an operator.

    Makes an admin key with a name, which the audit shows beside every change. Its secret is in this answer only.
    """
    database = services.stores.database
    try:
        created, secret = await database.in_writer(create_operator, database, body.name, by=by)
    except NameTaken as error:
        raise Conflict(f"There is an operator '{body.name}' already.", 1, code="name_taken") from error
    return OperatorWithSecret.describe(created, secret=secret)


@router.delete("/operators/{name}", response_description="The operator after that.", responses=errors(404))
async def end_operator(name: OperatorRef, services: ServicesDep, by: OperatorName) -> OperatorEntry:
    """Revoke an operator.

    Ends an admin key at once. Its operator's changes stay in the audit.
    """
    revoked = await services.stores.database.in_writer(revoke_operator, services.stores.database, name, by=by)
    if revoked is None:
        raise NotFound(f"There is no operator '{name[:60]}'.", param="name", code="operator_not_found")
    return OperatorEntry.describe(revoked)
