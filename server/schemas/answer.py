"""The base of the models that routes answer with."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Value = TypeVar("Value")
OmittedIfNone = Annotated[Value | None, Field(exclude_if=lambda value: value is None)]  # for keys that may not be null


class Answer(BaseModel):
    """Every key is always sent, but for those marked OmittedIfNone. So the JSON schema requires those with a default
    too."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)
