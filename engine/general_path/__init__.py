"""The general path on the CPU: a model's own modules, with native kernels where one fits.

For every model that is not matched by a fast path. The modules stay what they are, so whatever
transformers computes is computed; linear layers are packed and plain RMSNorms replaced, each after
a check. Called once, after loading.
"""

from engine.general_path.linears import pack_linears
from engine.general_path.norms import replace_norms

__all__ = ["pack_linears", "replace_norms"]
