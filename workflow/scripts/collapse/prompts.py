"""Prompts: their text, and their tokens under a model's tokenizer."""

import csv
import hashlib
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa

from collapse.errors import Refusal

COLUMNS = ["name", "file", "language", "kind", "gpt2_tokens", "replaces", "licence", "description"]


def read_prompts_table(path):
    """Return {name: row} of prompts.tsv.

    Raises
    ------
    Refusal
        If a column is missing or a name stands twice.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise Refusal(f"{path}: is not UTF-8 (byte {error.start}). Save it as UTF-8.") from error
    rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    missing = [name for name in COLUMNS if rows and name not in rows[0]]
    if missing or not rows:
        raise Refusal(f"{path}: needs a header with the columns {', '.join(COLUMNS)} and one row per prompt")
    table = {}
    for row in rows:
        if None in row or None in row.values():
            raise Refusal(
                f"{path}: the row of {row['name']!r} has not {len(COLUMNS)} fields: separate them by single tabs"
            )
        if row["name"] in table:
            raise Refusal(f"{path}: the prompt {row['name']!r} stands twice")
        table[row["name"]] = row
    return table


def read_prompt(path):
    """Return (text, sha256 of the text). A byte order mark and one newline at the end belong to the file.

    Raises
    ------
    Refusal
        If the file is not UTF-8 or holds no text.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(f"{path}: is not UTF-8 (byte {error.start}). Save it as UTF-8.") from error
    text = text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise Refusal(f"{path}: holds no text")
    return text, hashlib.sha256(text.encode()).hexdigest()


def tokenize(tokenizer, text, limit):
    """Turn a prompt into tokens, with the tokenizer's own special tokens, cut to `limit`.

    Returns
    -------
    (ids, table, record)
        Token ids, the token columns of the states table, and `n_tokens_untruncated`, `token_limit`, `is_truncated`,
        `first_token_is_special`.
    """
    tokenizer.truncation_side = "right"
    whole = len(tokenizer(text, verbose=False)["input_ids"])
    encoded = tokenizer(text, truncation=True, max_length=limit, return_special_tokens_mask=True, verbose=False)
    ids = encoded["input_ids"]
    if len(ids) > limit:
        raise Refusal(
            f"a limit of {limit} tokens leaves no room: the tokenizer adds special tokens and gives {len(ids)}. Raise "
            "max_tokens in the config."
        )
    if not ids:
        raise Refusal("the tokenizer makes no token of this prompt")
    tokens = [tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in ids]
    special = _is_special(tokenizer, ids, encoded["special_tokens_mask"])
    table = pa.table(
        {
            "position": np.arange(len(ids), dtype=np.int32),
            "token_id": np.array(ids, dtype=np.int32),
            "token": tokens,
            "is_special": special,
            "is_first": np.arange(len(ids)) == 0,
            "is_punctuation": [bool(is_punctuation(t) and not s) for t, s in zip(tokens, special)],
        }
    )
    record = {
        "n_tokens_untruncated": whole,
        "token_limit": limit,
        "is_truncated": len(ids) < whole,
        "first_token_is_special": bool(special[0]),
    }
    return ids, table, record


def _is_special(tokenizer, ids, added):
    """Tell which tokens are special: added by the tokenizer, or spelt out. An unknown word is content all the same."""
    roles = tokenizer.special_tokens_map
    others = {token for role, token in roles.items() if role != "unk_token" and isinstance(token, str)}
    unknown = tokenizer.unk_token if tokenizer.unk_token not in others else None
    marks = set(tokenizer.all_special_ids) - {tokenizer.convert_tokens_to_ids(unknown) if unknown else None}
    return (np.array(added, dtype=bool) | np.isin(ids, sorted(marks))) & np.array(
        [unknown is None or token != tokenizer.unk_token_id for token in ids]
    )


def is_punctuation(token):
    """Tell whether a decoded token consists of punctuation or symbols (Unicode categories P and S), spaces aside.

    >>> is_punctuation(" ."), is_punctuation("«"), is_punctuation("a."), is_punctuation(" ")
    (True, True, False, False)
    """
    text = token.strip()
    return bool(text) and all(
        unicodedata.category(character)[0] in "PS" and character != "\ufffd" for character in text
    )


def token_limit(max_tokens, config, tokenizer, position_offset):
    """Return the smallest of the config's maximum, the model's position table and the tokenizer's limit.

    A tokenizer without a limit of its own says 1e30; a model without a position table says nothing.
    """
    positions = getattr(config, "max_position_embeddings", None)
    limits = [max_tokens, tokenizer.model_max_length]
    if positions:
        limits.append(positions - position_offset)
    return int(min(limits))
