"""One run from checkpoint and prompt to a states file."""

from collapse import forward
from collapse.architectures import ARCHITECTURES
from collapse.checkpoint import load_model, load_tokenizer, model_config
from collapse.depth import require_deepenable
from collapse.errors import Refusal
from collapse.prompts import read_prompt, token_limit, tokenize
from collapse.provenance import versions
from collapse.states import writing

# What transformers says where a tokenizer has no limit is 1e30.
NO_LIMIT = 1e20
# What a forward pass raises over a token or position that its tables do not have; how, an unknown model type decides.
NO_PLACE = {True: IndexError, False: (IndexError, RuntimeError)}
COPIED = ("revision", "source", "seed", "weights_hash", "checkpoint_dtypes", "proof")


def extract(run, checkpoint, weights_record, scheme, prompt, max_tokens, device, threads, output, depth=None):
    """Run one model with one set of weights on one prompt and store the states.

    Parameters
    ----------
    run : dict
        `model`, `weights` and `prompt`, as in paths.
    checkpoint : path
        Safetensors checkpoint with config and tokenizer.
    weights_record : dict
        What weights.json says.
    scheme : str
        Name of the scheme, as in tables.
    prompt : path
        The prompt's file.
    max_tokens : int
        Longest prompt in tokens.
    device : str
        `cpu` or `cuda`.
    threads : int
        Threads of the forward pass.
    output : path
        The states file.
    depth : dict, optional
        `depth` and `trained_depth` of a model that runs deeper than it was trained.
    """
    forward.use_device(device, threads)
    text, prompt_hash = read_prompt(prompt)
    if depth:
        require_deepenable(run["model"], model_config(checkpoint), **depth)
    model, entry = load_model(checkpoint, device, depth["depth"] if depth else None)
    tokenizer = load_tokenizer(checkpoint)
    limit = token_limit(max_tokens, model.config, tokenizer, entry.position_offset)
    ids, tokens, token_record = tokenize(tokenizer, text, limit)
    if tokenizer.model_max_length > NO_LIMIT:
        print(f"{run['model']}: its tokenizer gives no maximum length; the limit of {limit} tokens is another's")
    if token_record["is_truncated"]:
        whole = token_record["n_tokens_untruncated"]
        print(
            f"{run['prompt']}: {whole} tokens, cut to the {limit} that model, tokenizer and max_tokens leave room for"
        )
    print(f"{run['model']} {run['weights']} {run['prompt']}: {len(ids)} tokens, limit {limit}, {device}")
    record = {
        **run,
        **{key: weights_record[key] for key in COPIED},
        **token_record,
        "scheme": scheme,
        "prompt_hash": prompt_hash,
        "model_type": model.config.model_type,
        "n_blocks": forward.n_blocks(model),
        "trained_depth": depth["trained_depth"] if depth else forward.n_blocks(model),
        "n_states": forward.n_states(model, entry),
        "is_causal": entry.is_causal,
        "device": forward.device_name(device),
        "dtype": "float32",
        "attention": model.config._attn_implementation,
        "versions": versions("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow"),
    }
    with writing(output, tokens, model.config.hidden_size, record) as write:
        try:
            forward.run(model, entry, ids, write)
        except NO_PLACE[model.config.model_type in ARCHITECTURES] as error:
            raise Refusal(
                f"{run['model']}: the forward pass over {len(ids)} tokens failed ({error}). If they do not fit into "
                "its table of positions, lower max_tokens, or say position_offset in collapse/architectures.py"
            ) from error
