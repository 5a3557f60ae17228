"""Where the parts of an architecture are: one entry per transformers `model_type`.

Blocks are found by the name of their modules in the base model (`AutoModel`), so that states can be taken as they
appear. What an entry does not say, the workflow does not guess.
"""

import re
from dataclasses import dataclass, field

from collapse.errors import Refusal


@dataclass(frozen=True)
class Architecture:
    """The facts about one model type.

    Attributes
    ----------
    blocks : str
        Regular expression of the names of the block modules; one call of one of them is one layer of depth.
    final_norm : str or None
        Name of the norm after the last block (pre-norm models), None where blocks end in their own norm.
    is_causal : bool
        Whether a token sees only itself and those before it.
    fused : dict
        Regular expression of a weight's name -> (axis, number of equal parts): projections stored as one tensor,
        which are matched part by part.
    buffers : str or None
        Regular expression of tensors that old checkpoints carry and that are no weights (attention masks).
    position_offset : int
        Rows of the position table that no token can use.
    load : dict
        Arguments for loading the base model.
    attention : str or None
        Regular expression of the names of the modules whose second output is the attention (batch, heads, n, n), one
        call per block; None where it is not known.
    """

    blocks: str
    final_norm: str | None
    is_causal: bool
    fused: dict = field(default_factory=dict)
    buffers: str | None = None
    position_offset: int = 0
    load: dict = field(default_factory=dict)
    attention: str | None = None


ARCHITECTURES = {
    "albert": Architecture(
        blocks=r"encoder\.albert_layer_groups\.\d+\.albert_layers\.\d+",
        final_norm=None,
        is_causal=False,
        load={"add_pooling_layer": False},
        attention=r"encoder\.albert_layer_groups\.\d+\.albert_layers\.\d+\.attention",
    ),
    "bert": Architecture(
        blocks=r"encoder\.layer\.\d+",
        final_norm=None,
        is_causal=False,
        load={"add_pooling_layer": False},
        attention=r"encoder\.layer\.\d+\.attention\.self",
    ),
    "gpt2": Architecture(
        blocks=r"h\.\d+",
        final_norm="ln_f",
        is_causal=True,
        fused={r"attn\.c_attn\.weight$": (1, 3)},
        buffers=r"\.attn\.(bias|masked_bias)$",
        attention=r"h\.\d+\.attn",
    ),
    "llama": Architecture(
        blocks=r"layers\.\d+",
        final_norm="norm",
        is_causal=True,
        attention=r"layers\.\d+\.self_attn",
    ),
}

# Tensors of heads on top of the base model, which it does not load.
HEADS = re.compile(r"(^|\.)(lm_head|cls|predictions|pooler|sop_classifier|classifier|score|qa_outputs)\.")


def architecture(model_type, where="this checkpoint"):
    """Return the entry of a model type; `where` is the checkpoint, for the message.

    Raises
    ------
    Refusal
        If there is none.
    """
    if model_type not in ARCHITECTURES:
        raise Refusal(
            f"{where}: model type {model_type!r} has no entry in ARCHITECTURES of collapse/architectures.py (known: "
            f"{', '.join(ARCHITECTURES)}): add one that names its blocks and final norm"
        )
    return ARCHITECTURES[model_type]


def fused_parts(entry, name):
    """Return (axis, parts) for a tensor's name; (0, 1) for a tensor that holds one matrix."""
    for pattern, split in entry.fused.items():
        if re.search(pattern, name):
            return split
    return 0, 1
