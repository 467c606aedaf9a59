"""What a request is about: for now, always a new call."""

import uuid
from functools import partial

from server.accounts.keys import Key
from server.flows.images import create_images
from server.flows.resolve import ImageCall
from server.flows.running import RunningCall, Ticket
from server.services import Services


def open_call(services: Services, key: Key, call: ImageCall, *, retries: bool) -> RunningCall:
    """Start the call. `retries` says that the client comes back by itself when its connection is cut."""
    patience_s = services.settings.retry_grace_s if retries else 0.0
    ticket = Ticket(f"img_{uuid.uuid4().hex}", key.id, call.endpoint, patience_s)
    return services.calls.start(ticket, partial(create_images, services, key, call))
