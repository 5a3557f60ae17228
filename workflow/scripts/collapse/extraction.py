"""One run from checkpoint and prompt to a states file."""

from collapse import forward
from collapse.checkpoint import load_model, load_tokenizer
from collapse.prompts import read_prompt, token_limit, tokenize
from collapse.provenance import versions
from collapse.states import writing

COPIED = ("revision", "source", "seed", "weights_hash", "checkpoint_dtypes", "proof")


def extract(run, checkpoint, weights_record, scheme, prompt, max_tokens, device, threads, output):
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
    """
    forward.use_device(device, threads)
    text, prompt_hash = read_prompt(prompt)
    model, entry = load_model(checkpoint, device)
    tokenizer = load_tokenizer(checkpoint)
    limit = token_limit(max_tokens, model.config, tokenizer, entry.position_offset)
    ids, tokens, token_record = tokenize(tokenizer, text, limit)
    print(f"{run['model']} {run['weights']} {run['prompt']}: {len(ids)} tokens, limit {limit}, {device}")
    record = {
        **run,
        **{key: weights_record[key] for key in COPIED},
        **token_record,
        "scheme": scheme,
        "prompt_hash": prompt_hash,
        "model_type": model.config.model_type,
        "n_blocks": forward.n_blocks(model),
        "n_states": forward.n_states(model, entry),
        "is_causal": entry.is_causal,
        "device": forward.device_name(device),
        "dtype": "float32",
        "attention": model.config._attn_implementation,
        "versions": versions("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow"),
    }
    with writing(output, tokens, model.config.hidden_size, record) as write:
        forward.run(model, entry, ids, write)
