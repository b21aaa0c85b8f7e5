"""Values as a TOML file spells them."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def spelled(value: Any) -> str:
    """A value as it stands in a scenario."""
    if isinstance(value, BaseModel):
        return spelled(value.model_dump(exclude_defaults=True))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {spelled(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(spelled(item) for item in value) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
