"""Which models we serve right, and the refusal of all others, with the reason.

What a config tells is checked before any weight is read (`check_config`). The rest is measured
(`measure_model`): the loaded model runs two tokens through an attention that only takes notes, so
the shapes that size the KV cache are those that attention will really be given, and a feature that
our attention would have to ignore (soft caps, sinks, masks) is seen whatever the model calls it.
"""

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from engine.config import EngineError
from engine.loading.spec import ModelSpec

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
# Their frequencies depend on the longest position in the batch: neighbours would change an answer.
_ROPE_TYPES_REFUSED = frozenset({"dynamic", "longrope"})
_PROBE = "octavo_probe"
_PROBE_KEYWORDS = frozenset({"probe", "scaling", "sliding_window"})
# Keywords that do not change what attention computes for us: the paged batch carries positions and
# causality itself, and nothing is trained.
_HARMLESS = frozenset(
    {
        "cache_position",
        "dropout",
        "is_causal",
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


def meaningful_keywords(keywords: Mapping[str, object]) -> list[str]:
    """Those keywords of an attention call that would change its result, sorted.

    A keyword that is None or False is a feature not used.
    """
    return sorted(
        name
        for name, setting in keywords.items()
        if name not in _HARMLESS and setting is not None and setting is not False
    )


def check_config(config: PreTrainedConfig, model_class: type[PreTrainedModel]) -> None:
    """Raise `EngineError` for a model that cannot be served, as far as it shows before loading."""
    if config.is_encoder_decoder:
        raise _refusal(config, "it is an encoder-decoder")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise _refusal(
            config,
            f"{model_class.__name__} does not take an attention of ours (AttentionInterface)",
        )
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        raise _refusal(config, "it does not take position_ids")
    text_config = config.get_text_config()
    others = set(getattr(text_config, "layer_types", None) or ()) - _LAYER_TYPES
    if others:
        raise _refusal(
            config,
            f"it has layers other than full or sliding attention: {', '.join(sorted(others))}",
        )
    refused = sorted(set(_rope_types(text_config)) & _ROPE_TYPES_REFUSED)
    if refused:
        raise _refusal(
            config,
            f"its rotary scaling ({refused[0]}) depends on the longest sequence in the batch, so "
            "requests would change each other's answers",
        )
    if not getattr(text_config, "max_position_embeddings", None):
        raise _refusal(config, "its config does not name the longest context")


def measure_model(model: PreTrainedModel) -> ModelSpec:
    """The model's shapes, from one forward pass over two tokens on its device.

    Leaves the model with the attention implementation it had. Raises `EngineError` for a model
    whose attention differs from what the paged cache and the kernels provide.
    """
    config = model.config
    before = config._attn_implementation
    AttentionInterface.register(_PROBE, _take_notes)
    model.set_attn_implementation(_PROBE)
    calls: list[_Call] = []
    try:
        with torch.inference_mode():
            output = model(
                input_ids=torch.zeros(1, 2, dtype=torch.int64, device=model.device),
                position_ids=torch.arange(2, device=model.device).unsqueeze(0),
                use_cache=False,
                logits_to_keep=torch.tensor([1], device=model.device),
                probe=calls,
            )
        shape = tuple(output.logits.shape)
    except EngineError:
        raise
    except Exception as error:  # a model is foreign code and may fail in any way
        raise _refusal(config, f"its forward pass fails: {' '.join(str(error).split())}") from error
    finally:
        model.set_attn_implementation(before)
    if shape[:2] != (1, 1):
        raise _refusal(config, "it does not restrict its logits to the rows asked for")
    text_config = config.get_text_config()
    _check_layers(config, Counter(call.layer for call in calls), text_config.num_hidden_layers)
    for call in calls:
        _check_call(config, call, calls[0])
    return ModelSpec(
        num_layers=text_config.num_hidden_layers,
        num_query_heads=calls[0].query[0],
        num_kv_heads=calls[0].key[0],
        head_dim=calls[0].key[1],
        vocab_size=shape[2],
        max_model_len=text_config.max_position_embeddings,
        windowed=any(call.sliding_window for call in calls),
    )


class _Call(NamedTuple):
    """One call of attention; shapes are (heads, head_dim)."""

    layer: int | None
    query: tuple[int, int]
    key: tuple[int, int]
    value: tuple[int, int]
    sliding_window: object
    masked: bool
    causal: bool
    keywords: list[str]


def _take_notes(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    probe: list[_Call] | None = None,
    **keywords: object,
) -> tuple[torch.Tensor, None]:
    """Attention that computes nothing: zeros `[batch, tokens, query heads, value's head_dim]`."""
    if probe is None:
        raise EngineError(f"{type(module).__name__} does not pass our keywords on to attention")
    layer = getattr(module, "layer_idx", None)
    probe.append(
        _Call(
            layer=layer if isinstance(layer, int) else None,
            query=(query.shape[1], query.shape[3]),
            key=(key.shape[1], key.shape[3]),
            value=(value.shape[1], value.shape[3]),
            sliding_window=keywords.get("sliding_window"),
            masked=attention_mask is not None,
            causal=bool(getattr(module, "is_causal", True)),
            keywords=[k for k in meaningful_keywords(keywords) if k not in _PROBE_KEYWORDS],
        )
    )
    batch, heads, tokens, _ = query.shape
    return query.new_zeros(batch, tokens, heads, value.shape[3]), None


def _check_layers(config: PreTrainedConfig, counts: Counter[int | None], num_layers: int) -> None:
    """Attention is called exactly once in every layer, by a module that knows its index."""
    if max(counts.values(), default=0) > 1:
        raise _refusal(config, "it calls attention more than once in a layer")
    if set(counts) != set(range(num_layers)):
        raise _refusal(config, f"it calls attention in {len(counts)} of its {num_layers} layers")


def _check_call(config: PreTrainedConfig, call: _Call, first: _Call) -> None:
    if call.key != call.value or call.query[1] != call.key[1] or call.query[0] % call.key[0]:
        raise _refusal(
            config,
            f"the (heads, head_dim) of queries {call.query}, keys {call.key} and values "
            f"{call.value} do not go together in one cache",
        )
    if (call.query, call.key) != (first.query, first.key):
        raise _refusal(
            config,
            f"its layers differ in shape: keys {call.key} in layer {call.layer}, {first.key} in "
            f"layer {first.layer}",
        )
    if call.keywords:
        raise _refusal(config, f"its attention asks for {', '.join(call.keywords)}")
    if call.masked or not call.causal:
        raise _refusal(config, "its attention is not plainly causal")
    if _has_window(config.get_text_config(), call.layer) and not call.sliding_window:
        raise _refusal(config, "it does not tell attention its sliding window")


def _has_window(config: PreTrainedConfig, layer: int | None) -> bool:
    """Whether the config says that a layer's attention slides."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types and layer is not None:
        return bool(layer_types[layer] == "sliding_attention")
    return bool(getattr(config, "sliding_window", None)) and bool(
        getattr(config, "use_sliding_window", True)
    )


def _rope_types(config: PreTrainedConfig) -> Iterator[str]:
    """The kinds of rotary scaling: one, or one for each type of layer."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    for each in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        if "rope_type" in each:
            yield each["rope_type"]


def _refusal(config: PreTrainedConfig, reason: str) -> EngineError:
    return EngineError(f"model type {config.model_type!r} is not supported: {reason}")
