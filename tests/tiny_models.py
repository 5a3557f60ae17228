"""Tiny real checkpoints, made offline: random weights at a fixed seed, safetensors, and a fast tokenizer.

They have what large ones have: tied and fused tensors, shared blocks, poolers, special tokens; 3 blocks of width 32.
Weights have a standard deviation of 0.3 and norms are not 1 and 0, so that every block and every tensor differs.
"""

import contextlib
import hashlib
import json
import re
import string
import tempfile
from pathlib import Path

import gguf
import torch
import transformers
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

WIDTH, BLOCKS, HEADS, POSITIONS, SEED = 32, 3, 4, 64, 20240229
STD, DROPOUT = 0.3, 0.5

CORPUS = [
    "The ferry left in the fog, and nobody on the quay saw it turn back.",
    "Copper roofs turn green within twenty years; the sea air does it faster.",
    "Tokens attract one another on the sphere: they cluster, then they collapse.",
    "She wrote (in French) « le navire est parti », and paid $5 for the stamp.",
    "def area(width, height): return width * height",
    "The signal was . . . . . . . . . . . . and then nothing.",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = sorted({word for line in CORPUS for word in re.findall(r"\w+", line)})
CHARACTERS = sorted(set(string.ascii_lowercase + string.digits + string.punctuation + "«»—。"))


def _gpt2(**changes):
    dropout = {"resid_pdrop": DROPOUT, "embd_pdrop": DROPOUT, "attn_pdrop": DROPOUT}
    sizes = {"n_embd": WIDTH, "n_layer": BLOCKS, "n_head": HEADS, "n_positions": POSITIONS}
    fixed = {"initializer_range": STD, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2Config(**(fixed | dropout | sizes | changes))


def _llama(**changes):
    fixed = {"bos_token_id": 0, "eos_token_id": 1, "attention_dropout": DROPOUT, "num_key_value_heads": 2}
    return transformers.LlamaConfig(**(fixed | SIZES | changes))


def _bert(**changes):
    return transformers.BertConfig(**(BERT_DROPOUT | SIZES | changes))


def _roberta(**changes):
    ids = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    return transformers.RobertaConfig(**(BERT_DROPOUT | SIZES | ids | changes))


def _albert(**changes):
    return transformers.AlbertConfig(**(BERT_DROPOUT | SIZES | {"embedding_size": 16} | changes))


def _named(config, *fixed):
    """Return a function that makes a transformers config of the small sizes and some fixed entries."""
    return lambda **changes: getattr(transformers, config)(**(SIZES | dict(fixed) | changes))


def _opt(**changes):
    sizes = {"hidden_size": WIDTH, "word_embed_proj_dim": WIDTH, "ffn_dim": 64, "max_position_embeddings": POSITIONS}
    fixed = {"num_hidden_layers": BLOCKS, "num_attention_heads": HEADS, "init_std": STD, "attention_dropout": DROPOUT}
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    return transformers.OPTConfig(**(fixed | sizes | ids | changes))


def _distilbert(**changes):
    sizes = {"dim": WIDTH, "hidden_dim": 64, "n_layers": BLOCKS, "n_heads": HEADS, "max_position_embeddings": POSITIONS}
    fixed = {"initializer_range": STD, "dropout": DROPOUT, "attention_dropout": DROPOUT}
    return transformers.DistilBertConfig(**(fixed | sizes | changes))


def _modernbert(**changes):
    # The window of every other layer is shorter than the texts of the tests.
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 0) | {"eos_token_id": 3, "sep_token_id": 3}
    dropout = dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), DROPOUT)
    fixed = {"local_attention": 8, "global_attn_every_n_layers": 2, "attention_bias": True, "mlp_bias": True}
    return transformers.ModernBertConfig(**(SIZES | ids | dropout | fixed | changes))


SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
    "initializer_range": STD,
}
CAUSAL = (("bos_token_id", 0), ("eos_token_id", 1), ("attention_dropout", DROPOUT))
GROUPED = (("num_key_value_heads", 2),)
BERT_DROPOUT = {"hidden_dropout_prob": DROPOUT, "attention_probs_dropout_prob": DROPOUT}

# Model types without an entry in the table of architectures, for what works without one.
UNKNOWN = {
    "electra": (
        "ElectraForMaskedLM",
        {},
        _named("ElectraConfig", ("embedding_size", 16), *BERT_DROPOUT.items()),
        {},
        "wordpiece",
    ),
    "phi": ("PhiForCausalLM", {}, _named("PhiConfig", *CAUSAL), {}, "bytes"),
    "t5": ("T5Model", {}, _named("T5Config", ("d_model", WIDTH), ("d_kv", 8), ("d_ff", 64)), {}, "bytes"),
}

# kind -> (model class, arguments of its constructor, config, arguments of the config, tokenizer)
KINDS = {
    "gpt2": ("GPT2LMHeadModel", {}, _gpt2, {}, "bytes"),
    "gpt2-base": ("GPT2Model", {}, _gpt2, {}, "bytes"),
    "bert": ("BertModel", {"add_pooling_layer": False}, _bert, {}, "wordpiece"),
    "bert-pooler": ("BertModel", {"add_pooling_layer": True}, _bert, {}, "wordpiece"),
    "bert-mlm": ("BertForMaskedLM", {}, _bert, {}, "wordpiece"),
    "albert": ("AlbertModel", {}, _albert, {}, "unigram"),
    "albert-groups": ("AlbertModel", {}, _albert, {"num_hidden_layers": 4, "num_hidden_groups": 2}, "unigram"),
    "albert-inner": ("AlbertModel", {}, _albert, {"inner_group_num": 2}, "unigram"),
    "distilbert": ("DistilBertForMaskedLM", {}, _distilbert, {}, "wordpiece"),
    "gpt_neox": ("GPTNeoXForCausalLM", {}, _named("GPTNeoXConfig", *CAUSAL), {}, "bytes"),
    "mistral": ("MistralForCausalLM", {}, _named("MistralConfig", *CAUSAL, *GROUPED), {}, "bytes-bos"),
    "modernbert": ("ModernBertForMaskedLM", {}, _modernbert, {}, "wordpiece"),
    "opt": ("OPTForCausalLM", {}, _opt, {}, "bytes"),
    "opt-post": (
        "OPTForCausalLM",
        {},
        _opt,
        {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
        "bytes",
    ),
    "qwen2": ("Qwen2ForCausalLM", {}, _named("Qwen2Config", *CAUSAL, *GROUPED), {}, "bytes"),
    "qwen3": ("Qwen3ForCausalLM", {}, _named("Qwen3Config", *CAUSAL, *GROUPED, ("head_dim", 8)), {}, "bytes"),
    "roberta": ("RobertaForMaskedLM", {}, _roberta, {}, "wordpiece"),
    "llama": ("LlamaForCausalLM", {}, _llama, {"tie_word_embeddings": False}, "bytes-bos"),
    "llama-tied": ("LlamaForCausalLM", {}, _llama, {"tie_word_embeddings": True}, "bytes-bos"),
}


def make_model(kind, directory, **changes):
    """Make the checkpoint of a kind in `directory` and return that.

    Parameters
    ----------
    kind : str
        A key of `KINDS` or `UNKNOWN`.
    directory : path
        Where; made if absent.
    **changes
        Entries of the config other than the kind's.
    """
    model_class, arguments, config, own, tokenizer_kind = (KINDS | UNKNOWN)[kind]
    tokenizer = make_tokenizer(tokenizer_kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = getattr(transformers, model_class)(
            config(**({"vocab_size": len(tokenizer)} | own | changes)), **arguments
        )
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    with _quiet():
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    return Path(directory)


def pins(directory):
    """Return {weights file: sha256} of a checkpoint, as a `local` source pins it."""
    files = sorted(Path(directory).glob("*.safetensors"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def make_tokenizer(kind, **options):
    """Return a fast tokenizer with the words of `CORPUS`, the same in every process.

    `bytes`: GPT-2's (no special token is added); `bytes-bos`: the same with a first token, like Llama's; `wordpiece`
    and `unigram`: [CLS] and [SEP] around the text, like BERT's and ALBERT's, with a maximal length.
    """
    tokenizer, special = {"bytes": _bytes, "bytes-bos": _bytes_bos, "wordpiece": _wordpiece, "unigram": _unigram}[
        kind
    ]()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **(special | options))


def _bytes(special=("<|endoftext|>",)):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": list(special), "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, **options))
    return tokenizer, {"bos_token": special[0], "eos_token": special[-1], "unk_token": special[-1]}


def _bytes_bos():
    tokenizer, special = _bytes(("<s>", "</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer, special


def _wordpiece():
    words = sorted({word.lower() for word in WORDS} - set(CHARACTERS))
    pieces = SPECIAL + words + CHARACTERS + [f"##{character}" for character in CHARACTERS if character.isalnum()]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _with_ends(tokenizer)


def _unigram():
    scores = dict.fromkeys(SPECIAL, 0.0) | {f"\u2581{word}": -5.0 for word in WORDS} | {"\u2581": -9.0}
    scores |= dict.fromkeys(CHARACTERS + list(string.ascii_uppercase), -10.0)
    tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=SPECIAL.index("[UNK]")))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _with_ends(tokenizer)


def _with_ends(tokenizer):
    tokenizer.add_special_tokens(SPECIAL)
    ends = [(name, SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    return tokenizer, names | {"model_max_length": POSITIONS}


def make_gguf(kind, directory, name="tiny.gguf", without=()):
    """Write the checkpoint of a Llama kind as one unquantised GGUF file in `directory` and return (file, tensors).

    Names, and the order of the rows of queries and keys within a head, are llama.cpp's; `tensors` are the originals.
    Those named in `without` are left out of the file.
    """
    directory = Path(directory)
    with tempfile.TemporaryDirectory() as original:
        make_model(kind, original)
        tensors = load_file(Path(original) / "model.safetensors")
    backend = json.loads(make_tokenizer("bytes-bos").backend_tokenizer.to_str())["model"]
    directory.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(directory / name, "llama")
    writer.add_name("tiny")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(backend["vocab"]))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(backend["vocab"], key=backend["vocab"].get))
    writer.add_token_merges([" ".join(merge) for merge in backend["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for theirs, ours in _gguf_names().items():
        if ours in tensors and ours not in without:
            writer.add_tensor(theirs, _gguf_rows(ours, tensors[ours]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return directory / name, tensors


def _gguf_names():
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    parts = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    parts |= {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"} | {"attn_output": "self_attn.o_proj"}
    parts |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    for block in range(BLOCKS):
        names |= {f"blk.{block}.{theirs}": f"model.layers.{block}.{ours}" for theirs, ours in parts.items()}
    return {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in names.items()}


def _gguf_rows(name, tensor):
    """llama.cpp interleaves the two halves of each head of queries and keys, for its rotary positions."""
    heads = HEADS if "q_proj" in name else 2 if "k_proj" in name else None
    if heads is None:
        return tensor
    return tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape).copy()


def edit_tensors(directory, change):
    """Rewrite model.safetensors with what `change(tensors)` returns, torch tensors by name."""
    path = Path(directory) / "model.safetensors"
    save_file(change(load_torch_file(path)), path, {"format": "pt"})


def edit_json(path, **changes):
    """Change entries of a JSON file, such as a checkpoint's config.json."""
    path = Path(path)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


@contextlib.contextmanager
def _quiet():
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
