"""What all request bodies share: strict types, no unknown fields, no NaN."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """A JSON object of a request. Strict: no number for a string, no string for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
