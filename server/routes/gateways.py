"""/admin/gateways: the servers of a cluster, for operators. /cluster: their questions to each other, on their private
listeners alone."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from server.errors import NotFound
from server.flows.catalog.member import CatalogMember, Proposal
from server.flows.gateways import describe_gateways
from server.http.body_limit import body_lease
from server.http.deps import FORWARDED, ServicesDep
from server.http.operators import operator
from server.routes.health import readiness_details
from server.schemas.status import GatewayList, ReadinessDetails, SharedCatalog
from server.schemas.validation import parse_json, validate

PROPOSER = "another gateway"  # in place of a key, in the budget for bodies: fifty edits with whole files are long

router = APIRouter()


def member_of_cluster(request: Request, services: ServicesDep) -> CatalogMember:
    """Return this cluster's member for a request of another gateway's own. Raises NotFound for everybody else."""
    if request.scope.get(FORWARDED) != "" or services.cluster is None:
        raise NotFound("Unknown request URL. The routes are listed at /openapi.json.", code="unknown_url")
    return services.cluster.member


MemberDep = Annotated[CatalogMember, Depends(member_of_cluster)]


@router.get("/admin/gateways", dependencies=[Depends(operator)], response_description="The servers.")
async def list_gateways(services: ServicesDep) -> GatewayList:
    """List servers.

    Lists the servers that share the database, with their workers and the catalog that each serves.
    """
    other_gateways = None if services.cluster is None else services.cluster.other_gateways
    cards = await describe_gateways(services.stores.gateways, other_gateways, lambda: readiness_details(services))
    return GatewayList.of(cards)


@router.post("/cluster/catalog/prepare", include_in_schema=False)
async def prepare(request: Request, member: MemberDep) -> SharedCatalog:
    """Load a version that another gateway proposes."""
    await body_lease(request).begin(PROPOSER)
    await member.prepare(validate(Proposal, parse_json(await request.body()), strict=False))
    return _state(member)


@router.post("/cluster/catalog/settle", include_in_schema=False)
async def settle(member: MemberDep) -> SharedCatalog:
    """Look at the outcome of a change."""
    await member.settle()
    return _state(member)


@router.get("/cluster/state", include_in_schema=False, dependencies=[Depends(member_of_cluster)])
async def state(services: ServicesDep) -> ReadinessDetails:
    """Return the state of this gateway for the operators of another one."""
    return readiness_details(services)


def _state(member: CatalogMember) -> SharedCatalog:
    return {"version": member.version, "problem": member.problem}
