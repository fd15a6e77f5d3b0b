"""Which models the native block computes exactly as transformers does.

Only classes that were read and compared, by their exact type: a subclass, a module put in their
place or an option that we do not know may mean anything, and takes the general path.
"""

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_LINEARS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
_MODULES = frozenset({"RMSNorm", "Attention", "MLP", "DecoderLayer", "RotaryEmbedding", "Model"})


def why_not_llama(model: "PreTrainedModel") -> str | None:
    """What keeps a model from the fast path, in one clause; None where nothing does."""
    kind = type(model).__name__
    home = f"transformers.models.{model.config.model_type}."
    if kind not in _CLASSES or not type(model).__module__.startswith(home):
        return f"{kind} is none of {', '.join(_CLASSES)}"
    family = kind.removesuffix("ForCausalLM")
    if model.config.hidden_act != "silu":
        return f"its activation is {model.config.hidden_act}, not silu"
    if model.lm_head.bias is not None:
        return "its head has a bias"
    for module in model.modules():
        if type(module).__module__.startswith(home):
            name = type(module).__name__.removeprefix(family)
            if name not in _MODULES and module is not model:
                return f"it holds a {type(module).__name__}"
        elif type(module) not in (nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU) and (
            type(module).__name__ != "SiLUActivation"
        ):
            return f"it holds a {type(module).__name__}"
    for layer in model.model.layers:
        for name in _LINEARS:
            if type(layer.get_submodule(name)) is not nn.Linear:
                return f"its {name} is no nn.Linear"
    if 2 * len(model.model.rotary_emb.inv_freq) != model.model.layers[0].self_attn.head_dim:
        return "its rotary embedding covers a part of each head"
    return None
