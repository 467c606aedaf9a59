"""The base of the models that routes answer with."""

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Every key is always sent. So the JSON schema requires those with a default too."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)
