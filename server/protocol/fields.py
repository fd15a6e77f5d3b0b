"""Fields of request bodies that say of themselves what they mean and how far they go.

What `told` is given ends up in the OpenAPI document and from there in docs/api.md. It describes
only: ranges are checked by `SamplingParams`, in one place for every way in.
"""

from typing import Any

from pydantic import Field

# How a field relates to the APIs that people know, under `x-compared` in the schema.
AS_OPENAI = "as OpenAI's"
AS_VLLM = "vLLM's; OpenAI has none"
OURS = "ours; neither OpenAI nor vLLM has it"


def told(
    default: Any,
    description: str,
    compared: str = AS_OPENAI,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    max_items: int | None = None,
    checks: dict[str, Any] | None = None,
) -> Any:
    """A field with a `default` (... for none). `low` and `high` are inclusive, `above` is not.
    `checks` are pydantic's own, for what no one else looks at."""
    bounds = {"minimum": low, "maximum": high, "exclusiveMinimum": above, "maxItems": max_items}
    extra: dict[str, Any] = {"x-compared": compared}
    extra |= {name: value for name, value in bounds.items() if value is not None}
    return Field(default, description=description, json_schema_extra=extra, **(checks or {}))
