"""Models arrive whole, with the pinned contents, or not at all."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import constants

from collapse.errors import Refusal
from collapse.fetch import fetch, revision
from collapse.files import sha256_of

FILES = {
    "config.json": b'{"model_type": "gpt2"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights of this model",
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def digest(content):
    return hashlib.sha256(content).hexdigest()


def fill(directory, files):
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


class Target:
    """Where a fetch puts its two outputs, and what it must leave there when it fails."""

    def __init__(self, root):
        self.root = root / "results" / "models" / "tiny"
        self.snapshot, self.record_path = self.root / "snapshot", self.root / "source.json"

    def fetch(self, source):
        fetch("tiny", source, self.snapshot, self.record_path)
        return json.loads(self.record_path.read_text(encoding="utf-8"))

    def refused(self, source, match):
        with pytest.raises(Refusal, match=match) as refusal:
            self.fetch(source)
        assert not self.root.exists() or list(self.root.iterdir()) == []
        assert str(refusal.value).startswith("tiny: ")
        return str(refusal.value)


@pytest.fixture
def target(tmp_path):
    return Target(tmp_path)


# A local directory


def local(path, **pins):
    return {
        "kind": "local",
        "path": str(path),
        "sha256": {"model.safetensors": digest(FILES["model.safetensors"])} | pins,
    }


def test_a_local_model_is_linked_and_recorded_with_the_sha256_of_every_file(tmp_path, target):
    source = local(fill(tmp_path / "model", FILES))
    record = target.fetch(source)
    assert contents(target.snapshot) == FILES
    assert all(path.is_symlink() for path in target.snapshot.iterdir())
    assert record == {
        "model": "tiny",
        "source": source,
        "revision": "local",
        "files": {name: digest(content) for name, content in FILES.items()},
    }


def test_a_local_path_may_be_relative_and_a_link(tmp_path, target, monkeypatch):
    fill(tmp_path / "model", FILES)
    (tmp_path / "link").symlink_to("model")
    monkeypatch.chdir(tmp_path)
    target.fetch(local("link"))
    monkeypatch.chdir("/")
    assert contents(target.snapshot) == FILES


def test_weights_that_differ_from_their_pin_are_refused_with_both_hashes(tmp_path, target):
    fill(tmp_path / "model", FILES | {"model.safetensors": b"other weights"})
    message = target.refused(local(tmp_path / "model"), r"model\.safetensors")
    assert digest(b"other weights") in message
    assert digest(FILES["model.safetensors"]) in message
    assert "before you change the pin" in message


def test_weights_without_a_pin_are_refused_with_the_line_to_add(tmp_path, target):
    fill(tmp_path / "model", FILES | {"second.safetensors": b"more weights"})
    message = target.refused(local(tmp_path / "model"), "not pinned")
    assert f"sha256: {{second.safetensors: {digest(b'more weights')}}}" in message


def test_a_pin_of_a_file_that_is_not_there_is_refused(tmp_path, target):
    source = local(fill(tmp_path / "model", FILES), **{"model-2.safetensors": "0" * 64})
    target.refused(source, r"pins model-2\.safetensors, which the source does not have")


def test_any_file_can_be_pinned(tmp_path, target):
    fill(tmp_path / "model", FILES)
    target.refused(local(tmp_path / "model", **{"config.json": "0" * 64}), r"config\.json has sha256")
    assert target.fetch(local(tmp_path / "model", **{"config.json": digest(FILES["config.json"])}))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"])
def test_pickled_weights_alone_are_refused_with_the_conversion_TF16(tmp_path, target, name):
    files = {key: content for key, content in FILES.items() if not key.endswith(".safetensors")}
    fill(tmp_path / "model", files | {name: b"\x80\x04."})
    message = target.refused(local(tmp_path / "model"), "no .*safetensors weights")
    assert "AutoModel.from_pretrained(PATH).save_pretrained(NEW_PATH)" in message


def test_pickles_and_code_beside_safetensors_are_left_behind(tmp_path, target):
    fill(tmp_path / "model", FILES | {"pytorch_model.bin": b"\x80\x04.", "modeling_tiny.py": b"raise SystemExit"})
    fill(tmp_path / "model" / "onnx", {"model.onnx": b"x"})
    target.fetch(local(tmp_path / "model"))
    assert contents(target.snapshot) == FILES


@pytest.mark.parametrize("kind", ["absent", "file"])
def test_a_local_source_that_is_no_directory_is_refused(tmp_path, target, kind):
    path = tmp_path / "model"
    if kind == "file":
        path.write_bytes(b"")
    assert str(path) in target.refused(local(path), "no directory")


def test_a_gguf_file_must_be_there_and_be_pinned(tmp_path, target):
    path = fill(tmp_path / "model", {"tiny.gguf": b"GGUF"})
    source = {"kind": "local", "path": str(path), "gguf_file": "other.gguf", "sha256": {"tiny.gguf": digest(b"GGUF")}}
    assert "tiny.gguf" in target.refused(source, "'other.gguf' is not among")
    target.refused(source | {"gguf_file": "tiny.gguf", "sha256": {}}, r"tiny\.gguf is not pinned")
    target.refused({key: source[key] for key in ("kind", "path", "sha256")}, "names no gguf_file")
    target.fetch(source | {"gguf_file": "tiny.gguf"})
    assert contents(target.snapshot) == {"tiny.gguf": b"GGUF"}


def test_a_refused_fetch_leaves_what_an_earlier_one_brought(tmp_path, target):
    target.fetch(local(fill(tmp_path / "model", FILES)))
    before = target.record_path.read_bytes()
    with pytest.raises(Refusal):
        target.fetch(local(tmp_path / "nowhere"))
    assert contents(target.snapshot) == FILES
    assert target.record_path.read_bytes() == before
    assert sorted(path.name for path in target.root.iterdir()) == ["snapshot", "source.json"]


def test_a_new_fetch_replaces_all_of_the_old_one(tmp_path, target):
    target.fetch(local(fill(tmp_path / "old", FILES | {"extra.json": b"{}"})))
    target.fetch(local(fill(tmp_path / "new", FILES)))
    assert contents(target.snapshot) == FILES


# A package on PyPI

WHEEL = "tiny_model-1.0-py3-none-any.whl"
PACKED = {
    **{f"tiny_model/model/{name}": content for name, content in FILES.items()},
    "tiny_model/model/__init__.py": b"raise SystemExit('code of the package ran')",
    "tiny_model/model/deeper/config.json": b"{}",
    "tiny_model/model/../../../escaped.json": b"{}",
    "tiny_model/model_of_another/config.json": b"{}",
    "tiny_model/__init__.py": b"raise SystemExit('code of the package ran')",
    "tiny_model/readme.txt": b"text",
    "tiny_model-1.0.dist-info/METADATA": b"Name: tiny-model",
}


class Pip:
    """Stands for `pip download`: copies a wheel to --dest, or fails."""

    def __init__(self, wheel, code=0):
        self.wheel, self.code, self.commands = wheel, code, []

    def __call__(self, command, **options):
        self.commands.append([str(part) for part in command])
        if self.code == 0:
            (Path(command[command.index("--dest") + 1]) / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, self.code)


@pytest.fixture
def pip(tmp_path, monkeypatch):
    wheel = tmp_path / "index" / WHEEL
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in PACKED.items():
            archive.writestr(name, content)
    pip = Pip(wheel)
    monkeypatch.setattr(subprocess, "run", pip)
    return pip


def pypi(pip, **changes):
    pinned = digest(pip.wheel.read_bytes())
    source = {"kind": "pypi", "package": "tiny-model", "version": "1.0", "sha256": pinned, "path": "tiny_model/model"}
    return source | changes


@pytest.mark.parametrize("path", ["tiny_model/model", "/tiny_model/model/"])
def test_only_the_files_of_the_folder_are_unpacked_and_no_code(tmp_path, target, pip, path):
    source = pypi(pip, path=path)
    record = target.fetch(source)
    assert contents(target.snapshot) == FILES
    assert not list(tmp_path.rglob("escaped.json"))
    assert record == {
        "model": "tiny",
        "source": source,
        "revision": "tiny-model==1.0",
        "files": {name: digest(content) for name, content in FILES.items()},
    }


def test_pip_downloads_one_pinned_wheel_and_installs_and_builds_nothing(target, pip):
    target.fetch(pypi(pip))
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "tiny-model==1.0"
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"


def test_a_wheel_that_differs_from_its_pin_is_refused_with_both_hashes(target, pip):
    message = target.refused(pypi(pip, sha256="f" * 64), "whl has sha256")
    assert digest(pip.wheel.read_bytes()) in message and "f" * 64 in message
    assert "before you change the pin" in message


def test_a_folder_that_the_wheel_lacks_is_refused(target, pip):
    assert WHEEL in target.refused(pypi(pip, path="tiny_model/weights"), "no files in the folder 'tiny_model/weights/'")


def test_a_folder_of_code_alone_is_refused(target, pip):
    with zipfile.ZipFile(pip.wheel, "w") as archive:
        archive.writestr("tiny_model/model/__init__.py", b"")
    target.refused(pypi(pip), "no files in the folder")


def test_a_folder_without_weights_is_refused(target, pip):
    target.refused(pypi(pip, path="tiny_model"), r"no \*\.safetensors weights")


def test_a_pip_that_fails_is_a_refusal_that_names_the_requirement(target, pip):
    pip.code = 1
    message = target.refused(pypi(pip), "could not download tiny-model==1.0")
    assert "network" in message and "version" in message


# The Hugging Face hub


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache as the hub's library lays it out, and no network."""
    folder = tmp_path / "hub" / "models--someone--tiny"
    for name, content in FILES.items():
        blob = folder / "blobs" / digest(content)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = folder / "snapshots" / COMMIT / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder / "snapshots" / COMMIT


def hub(**changes):
    pins = {"model.safetensors": digest(FILES["model.safetensors"])}
    return {"kind": "hub", "id": "someone/tiny", "revision": COMMIT, "sha256": pins} | changes


def test_a_cached_commit_is_used_without_the_hub_TF17(target, cache):
    record = target.fetch(hub())
    assert contents(target.snapshot) == FILES
    assert record["revision"] == f"someone/tiny@{COMMIT}"
    assert record["files"] == {name: digest(content) for name, content in FILES.items()}


def test_pickles_and_code_of_a_cached_commit_are_left_behind(target, cache):
    fill(cache, {"pytorch_model.bin": b"\x80\x04.", "modeling_tiny.py": b"raise SystemExit"})
    target.fetch(hub())
    assert contents(target.snapshot) == FILES


def test_a_cached_file_that_differs_from_its_pin_is_refused(target, cache):
    target.refused(hub(sha256={"model.safetensors": "f" * 64}), r"model\.safetensors has sha256")
    target.refused(hub(sha256={}), "not pinned")


@pytest.mark.parametrize("missing", [{"id": "someone/else"}, {"revision": "f" * 40}])
def test_what_is_neither_cached_nor_reachable_is_refused_with_how_to_provide_it(target, cache, missing):
    source = hub(**missing)
    message = target.refused(source, "not whole in the local Hugging Face cache")
    assert f"hf download {source['id']} --revision {source['revision']}" in message
    assert "HF_HOME" in message


def test_weights_missing_from_a_cached_commit_are_asked_of_the_hub(target, cache, monkeypatch):
    # Whoever loaded only the config or the tokenizer of a model has such a cache.
    (cache / "model.safetensors").unlink()
    real = huggingface_hub.snapshot_download

    def online(*args, local_files_only=False, **options):
        if not local_files_only:
            fill(cache, {"model.safetensors": FILES["model.safetensors"]})
        return real(*args, local_files_only=True, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", online)
    target.fetch(hub())
    assert contents(target.snapshot) == FILES


def test_weights_missing_from_a_cached_commit_offline_are_refused_with_how_to_provide_them(target, cache):
    (cache / "model.safetensors").unlink()
    message = target.refused(hub(), "someone/tiny")
    assert f"hf download someone/tiny --revision {COMMIT}" in message
    # Nothing says that this model has pickled weights only.
    assert "save_pretrained" not in message


def test_weights_missing_from_a_cached_commit_are_refused_so_too_where_the_hub_is_only_unreachable(
    target, cache, monkeypatch
):
    # A compute node without a network on which nobody set HF_HUB_OFFLINE: the library then returns what it has.
    (cache / "model.safetensors").unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    real = huggingface_hub.snapshot_download

    def unreachable(*args, local_files_only=False, **options):
        return real(*args, local_files_only=True, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    message = target.refused(hub(), "someone/tiny")
    assert f"hf download someone/tiny --revision {COMMIT}" in message
    assert "save_pretrained" not in message


@pytest.mark.parametrize("error", [httpx2.ProxyError, httpx2.ReadError])
def test_a_download_that_breaks_is_refused_with_how_to_provide_the_model(target, cache, monkeypatch, error):
    real = huggingface_hub.snapshot_download

    def broken(*args, local_files_only=False, **options):
        if local_files_only:
            return real(*args, local_files_only=True, **options)
        raise error("broken")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    assert error.__name__ in target.refused(hub(revision="f" * 40), "hf download")


def test_a_full_disk_of_the_cache_is_not_taken_for_that_of_the_results(target, cache, monkeypatch):
    real = huggingface_hub.snapshot_download

    def full(*args, local_files_only=False, **options):
        if local_files_only:
            return real(*args, local_files_only=True, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    told = f"the Hugging Face cache {constants.HF_HUB_CACHE}: could not be written: No space left on device"
    assert told in target.refused(hub(revision="f" * 40), told)


# What pins a source


def test_a_revision_is_one_string_per_source():
    assert revision({"kind": "pypi", "package": "tiny-model", "version": "1.0"}) == "tiny-model==1.0"
    assert revision({"kind": "hub", "id": "someone/tiny", "revision": COMMIT}) == f"someone/tiny@{COMMIT}"
    assert revision({"kind": "local", "path": "x"}) == "local"


def test_a_sha256_is_of_the_contents(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert sha256_of(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
