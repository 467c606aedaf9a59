"""A server's connection to its Ray cluster, and its questions to the supervisor."""

import logging
from typing import cast

import ray
from ray.exceptions import RayError

from server.backends.cluster.roster import NAMESPACE, SUPERVISOR, Roster
from server.errors import StartError

ANSWER_S = 30.0


def connect(address: str) -> Roster:
    """Return the cluster's engines. Connects at the first call. Blocks. Raises StartError."""
    try:
        if not ray.is_initialized():
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        supervisor = ray.get_actor(SUPERVISOR, NAMESPACE)
        return cast(Roster, ray.get(supervisor.roster.remote(), timeout=ANSWER_S))
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise StartError(f"The cluster at {address} does not answer: {str(error).partition(chr(10))[0]}") from error
