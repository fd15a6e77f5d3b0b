"""The fast path on the CPU: a Llama-like model as one native call, on packed weights.

`match.py` says whether a model is one (and why not), `packing.py` moves its weights into packed
form, `native.py` runs steps on them, `trial.py` tries the kernels. The model of transformers stays
usable on the same weights: it is the general path and the oracle.
"""

from engine.llama.match import why_not_llama
from engine.llama.native import NativeLlama
from engine.llama.packing import WEIGHT_DTYPES, PackedModel, pack_model
from engine.llama.trial import try_linears

__all__ = [
    "WEIGHT_DTYPES",
    "NativeLlama",
    "PackedModel",
    "pack_model",
    "try_linears",
    "why_not_llama",
]
