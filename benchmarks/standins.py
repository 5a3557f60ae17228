"""Models at the true shapes of the study's, for machines that reach no hub: random weights, and a tokenizer of our own.

What a pass or a metric costs depends on shapes and numbers of tokens, and little on what weights have learned. What
does depend on it is not reproduced: peaked attention, whose scaling takes more rounds, and clusters of trained states.
"""

import hashlib
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

GPT2 = {"vocab_size": 50257, "n_positions": 1024}
ALBERT = {"vocab_size": 30000, "embedding_size": 128, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
BERT = {"vocab_size": 30522}


def _gpt2(layers, heads, width):
    return transformers.GPT2Config(n_layer=layers, n_head=heads, n_embd=width, **GPT2)


def _albert(layers, heads, width):
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width}
    return transformers.AlbertConfig(intermediate_size=4 * width, **sizes, **ALBERT)


def _bert(layers, heads, width):
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width}
    return transformers.BertConfig(intermediate_size=4 * width, **sizes, **BERT)


SHAPES = {
    "gpt2": (_gpt2, 12, 12, 768),
    "gpt2-medium": (_gpt2, 24, 16, 1024),
    "gpt2-large": (_gpt2, 36, 20, 1280),
    "gpt2-xl": (_gpt2, 48, 25, 1600),
    "albert-base-v2": (_albert, 12, 12, 768),
    "albert-xlarge-v2": (_albert, 24, 16, 2048),
    "bert-base-uncased": (_bert, 12, 12, 768),
    "bert-large-uncased": (_bert, 24, 16, 1024),
}


def make(name, directory, tokenizer):
    """Write a checkpoint as save_pretrained does, unless it is there; return the sha256 of its weights."""
    weights = Path(directory) / "model.safetensors"
    digest = Path(directory) / "model.safetensors.sha256"
    if not digest.exists():
        build, *shape = SHAPES[name]
        torch.manual_seed(0)
        transformers.AutoModel.from_config(build(*shape)).save_pretrained(directory, max_shard_size="100GB")
        tokenizer(is_bidirectional=not name.startswith("gpt2")).save_pretrained(directory)
        with open(weights, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        digest.write_text(found, encoding="utf-8")
    return digest.read_text(encoding="utf-8")


def tokenizers_like_gpt2(texts, n_tokens):
    """Return a maker of tokenizers under which some texts have, together, about as many tokens as GPT-2 gives them.

    Parameters
    ----------
    texts : list of str
        The prompts, on which byte pairs are learned.
    n_tokens : int
        Tokens that GPT-2's tokenizer makes of them.
    """
    small, large = 300, 8000
    while large - small > 20:
        middle = (small + large) // 2
        trained = _train(texts, middle)
        total = sum(len(trained.encode(text).ids) for text in texts)
        small, large = (middle, large) if total > n_tokens else (small, middle)
    trained = _train(texts, large)

    def make_tokenizer(is_bidirectional):
        tokenizer = Tokenizer.from_str(trained.to_str())
        if is_bidirectional:
            ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
            tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
        names = {"cls_token": "[CLS]", "sep_token": "[SEP]"} if is_bidirectional else {}
        return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names)

    return make_tokenizer


def _train(texts, vocabulary):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["[CLS]", "[SEP]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
