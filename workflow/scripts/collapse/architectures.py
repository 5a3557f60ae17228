"""Where the parts of an architecture are: one entry per transformers `model_type`.

Blocks are found by the name of their modules in the base model (`AutoModel`), so that states can be taken as they
appear; parameters by the end of their names, since checkpoints of the base model and of a model with a head differ in
the beginning. What an entry does not say, the workflow does not guess: for a model type without an entry the blocks
are looked for (collapse/blocks.py), and what needs more refuses.
"""

import re
from dataclasses import dataclass, field

from collapse.errors import Refusal


@dataclass(frozen=True)
class Fused:
    """Several projections stored as one tensor, in equal parts.

    Attributes
    ----------
    roles : tuple of str
        What the parts are, in order: `q`, `k`, `v` or `mlp`.
    axis : int
        Axis of the parts, in weights and biases alike: 0 where a weight is (out, in), -1 where it is (in, out).
    by_head : bool
        Whether the parts alternate head by head, instead of lying one after the other.
    """

    roles: tuple
    axis: int = 0
    by_head: bool = False


@dataclass(frozen=True)
class Architecture:
    """The facts about one model type.

    Attributes
    ----------
    blocks : str
        Regular expression of the names of the block modules; one call of one of them is one layer of depth.
    final_norm : str or None
        Name of the norm after the last block (pre-norm models), None where blocks end in their own norm.
    is_causal : bool or None
        Whether a token sees only itself and those before it; None where it is not known.
    components : dict
        Role -> regular expression of the end of the names of the modules whose parameters play it: `embeddings`, `q`,
        `k`, `v`, `o`, `mlp`. Norms and heads play none.
    fused : dict
        Regular expression of the end of a module's name -> Fused.
    buffers : str or None
        Regular expression of tensors that old checkpoints carry and that are no weights (attention masks).
    position_offset : int
        Rows of the position table that no token can use.
    load : dict
        Arguments for loading the base model.
    attention : str or None
        Regular expression of the names of the modules whose second output is the attention (batch, heads, n, n), one
        call per block; None where it is not known.
    shares_block : bool
        Whether one block runs at every depth, so that the model can run deeper than it was trained.
    """

    blocks: str
    final_norm: str | None
    is_causal: bool | None
    components: dict = field(default_factory=dict)
    fused: dict = field(default_factory=dict)
    buffers: str | None = None
    position_offset: int = 0
    load: dict = field(default_factory=dict)
    attention: str | None = None
    shares_block: bool = False


BERT_COMPONENTS = {
    "embeddings": r"(word|position|token_type)_embeddings",
    "q": r"attention\.self\.query",
    "k": r"attention\.self\.key",
    "v": r"attention\.self\.value",
    "o": r"attention\.output\.dense",
    "mlp": r"layer\.\d+\.(intermediate|output)\.dense",
}
LLAMA = Architecture(
    blocks=r"layers\.\d+",
    final_norm="norm",
    is_causal=True,
    components={
        "embeddings": "embed_tokens",
        **{role: rf"self_attn\.{role}_proj" for role in "qkvo"},
        "mlp": r"mlp\.(gate|up|down)_proj",
    },
    buffers=r"\.rotary_emb\.inv_freq$",
    attention=r"layers\.\d+\.self_attn",
)

ARCHITECTURES = {
    "albert": Architecture(
        blocks=r"encoder\.albert_layer_groups\.\d+\.albert_layers\.\d+",
        final_norm=None,
        is_causal=False,
        components={
            "embeddings": r"(word|position|token_type)_embeddings|embedding_hidden_mapping_in",
            "q": r"attention\.query",
            "k": r"attention\.key",
            "v": r"attention\.value",
            "o": r"attention\.dense",
            "mlp": "ffn|ffn_output",
        },
        load={"add_pooling_layer": False},
        attention=r"encoder\.albert_layer_groups\.\d+\.albert_layers\.\d+\.attention",
        shares_block=True,
    ),
    "bert": Architecture(
        blocks=r"encoder\.layer\.\d+",
        final_norm=None,
        is_causal=False,
        components=BERT_COMPONENTS,
        load={"add_pooling_layer": False},
        attention=r"encoder\.layer\.\d+\.attention\.self",
    ),
    "distilbert": Architecture(
        blocks=r"transformer\.layer\.\d+",
        final_norm=None,
        is_causal=False,
        components={
            "embeddings": "(word|position)_embeddings",
            **{role: rf"attention\.{role}_lin" for role in "qkv"},
            "o": r"attention\.out_lin",
            "mlp": r"ffn\.lin[12]",
        },
        attention=r"transformer\.layer\.\d+\.attention",
    ),
    "gpt2": Architecture(
        blocks=r"h\.\d+",
        final_norm="ln_f",
        is_causal=True,
        components={"embeddings": "w[tp]e", "o": r"attn\.c_proj", "mlp": r"mlp\.c_(fc|proj)"},
        # Conv1D is (in, out).
        fused={r"attn\.c_attn": Fused(("q", "k", "v"), axis=-1)},
        buffers=r"\.attn\.(bias|masked_bias)$",
        attention=r"h\.\d+\.attn",
    ),
    "gpt_neox": Architecture(
        blocks=r"layers\.\d+",
        final_norm="final_layer_norm",
        is_causal=True,
        components={
            "embeddings": "embed_in",
            "o": r"attention\.dense",
            "mlp": r"mlp\.dense_(h_to_4h|4h_to_h)",
        },
        fused={r"attention\.query_key_value": Fused(("q", "k", "v"), by_head=True)},
        buffers=r"\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)$",
        attention=r"layers\.\d+\.attention",
    ),
    "llama": LLAMA,
    # Its window, where it has one, is longer than any prompt here.
    "mistral": LLAMA,
    "modernbert": Architecture(
        blocks=r"layers\.\d+",
        final_norm="final_norm",
        # Two layers of three see only a window of tokens, which a uniform control without a mask does not show.
        is_causal=False,
        components={"embeddings": "tok_embeddings", "o": r"attn\.Wo", "mlp": r"mlp\.Wo"},
        fused={r"attn\.Wqkv": Fused(("q", "k", "v")), r"mlp\.Wi": Fused(("mlp", "mlp"))},
        attention=r"layers\.\d+\.attn",
    ),
    "opt": Architecture(
        blocks=r"decoder\.layers\.\d+",
        # The post-norm sizes have none, which loading sees.
        final_norm="decoder.final_layer_norm",
        is_causal=True,
        components={
            "embeddings": "embed_(tokens|positions)|project_(in|out)",
            **{role: rf"self_attn\.{role}_proj" for role in "qkv"},
            "o": r"self_attn\.out_proj",
            "mlp": r"layers\.\d+\.fc[12]",
        },
        attention=r"decoder\.layers\.\d+\.self_attn",
    ),
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "roberta": Architecture(
        blocks=r"encoder\.layer\.\d+",
        final_norm=None,
        is_causal=False,
        components=BERT_COMPONENTS,
        # Positions count from the row after the padding token's.
        position_offset=2,
        load={"add_pooling_layer": False},
        attention=r"encoder\.layer\.\d+\.attention\.self",
    ),
}

# Tensors of heads on top of the base model, which it does not load.
HEADS = re.compile(
    r"(^|\.)(lm_head|embed_out|cls|head|predictions|pooler|sop_classifier|pre_classifier|classifier|score|qa_outputs|"
    r"vocab_transform|vocab_layer_norm|vocab_projector)\.|^decoder\.(weight|bias)$"
)


def architecture(model_type, where="this checkpoint", need="blocks and final norm"):
    """Return the entry of a model type; `where` is the checkpoint and `need` what it is asked for, for the message.

    Raises
    ------
    Refusal
        If there is none.
    """
    if model_type not in ARCHITECTURES:
        raise Refusal(
            f"{where}: model type {model_type!r} has no entry in ARCHITECTURES of collapse/architectures.py (known: "
            f"{', '.join(ARCHITECTURES)}): add one that names its {need}"
        )
    return ARCHITECTURES[model_type]


def fused(entry, name):
    """Return how a tensor of this name is fused, or None if it holds one projection."""
    module = _module(name)
    return next((split for pattern, split in entry.fused.items() if _ends(pattern, module)), None)


def role(entry, name):
    """Return the role of a tensor that is not fused: a key of `components`, or None (norms, heads)."""
    module = _module(name)
    return next((role for role, pattern in entry.components.items() if _ends(pattern, module)), None)


def _module(name):
    return re.sub(r"\.(weight|bias)$", "", name)


def _ends(pattern, module):
    return re.search(rf"(^|\.)({pattern})$", module) is not None
