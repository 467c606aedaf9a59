"""How many tokens a response's input would be for its model."""

from server.accounts.keys import Key
from server.errors import BadRequest
from server.flows.admission import find_chat_model
from server.flows.chat.run import ChatRunner
from server.flows.rate_limits import RateLimiter
from server.flows.responses.history import History
from server.flows.responses.item_images import RequestItems
from server.flows.responses.planner import Planner
from server.schemas.responses import ResponseBody
from server.state.served import ServedCatalog


class TokenCounter:
    """Counts without running the model."""

    def __init__(
        self, catalog: ServedCatalog, history: History, planner: Planner, runner: ChatRunner, limiter: RateLimiter
    ) -> None:
        self._catalog = catalog
        self._history = history
        self._planner = planner
        self._runner = runner
        self._limiter = limiter

    async def count(self, key: Key, body: ResponseBody) -> int:
        """Count the tokens of the whole chain, with instructions and tools. Raises ApiError."""
        model = find_chat_model(self._catalog.current, body.model, key.groups)
        spec = model.spec
        if spec is None:
            message = f"Tokens of model `{model.name}` can't be counted here: it runs on another server."
            raise BadRequest(message, param="model", code="unsupported_value")
        past = await self._history.read_past(key, body)
        inputs, _ = await self._history.read_inputs(key, body.input)
        job = await self._planner.count_job(key, model, spec, body, RequestItems(past, inputs))
        async with self._limiter.slot(key):
            return (await self._runner.count_tokens(job)).tokens
