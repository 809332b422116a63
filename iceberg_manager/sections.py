"""What every section of ``lake.yaml`` has in common: frozen, no unknown keys, and no value in an error's text."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """The base of all sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
