"""How a key is declared: default, meaning and unit; and the kinds of value that many keys take."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from tuneyard_pipelines.sections import Says

NAME = r"[a-z0-9][a-z0-9._-]{0,63}"
NAME_RULE = "1 to 64 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit"


def key(default: Any, description: str, unit: str = "", **more: Any) -> Any:
    """A key's default, meaning and unit; `more` are pydantic's bounds and examples."""
    return Field(default, description=description, json_schema_extra={"unit": unit} if unit else None, **more)


def section(default: Any, description: str) -> Any:
    return Field(default_factory=default, description=description)


def _whole(value: Any) -> Any:
    """`3e6` and `4.0` are whole numbers, as in JSON schema."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def clean(text: str) -> str:
    """Refuses what databases and terminals choke on. Raises ValueError."""
    for position, character in enumerate(text, start=1):
        if unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t":
            raise ValueError(f"character {position} is U+{ord(character):04X}, a control character")
    return text


Whole = Annotated[int, BeforeValidator(_whole)]
Text = Annotated[str, AfterValidator(clean)]
Name = Annotated[str, Field(pattern=f"^{NAME}$"), Says(NAME_RULE)]
