"""Files of a model: which hold weights, and what identifies one."""

import hashlib
import os

# Files that hold tensors. Pickles are not among them: opening one runs what it contains.
WEIGHT_SUFFIXES = (".safetensors", ".gguf")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# Files of which a tokenizer needs one.
VOCABULARIES = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)


def sha256_of(path):
    """Return the sha256 of a file's contents."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def file_record(path):
    """Return what identifies a file: sha256 and size, and the time that lets a later look skip the hash."""
    status = os.stat(path)
    return {"sha256": sha256_of(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
