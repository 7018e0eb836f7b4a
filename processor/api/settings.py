"""The base of a plug-in's settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Base of a plug-in's typed settings: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
