"""Models arrive whole, with the pinned contents, or not at all."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import huggingface_hub
import pytest
import yaml
from huggingface_hub import constants

from collapse import hub_lock
from collapse.errors import Refusal
from collapse.fetch import fetch, revision
from collapse.files import sha256_of
from collapse.hub_lock import lock, locked

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
        self.lock = root / "config" / "hub.lock.yaml"

    def fetch(self, source):
        fetch("tiny", source, self.snapshot, self.record_path, self.lock)
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
    assert not target.lock.exists()


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


def test_a_download_that_breaks_without_a_word_is_refused_by_its_kind(target, cache, monkeypatch):
    def broken(*args, **options):
        raise huggingface_hub.errors.LocalEntryNotFoundError("")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    target.refused(hub(revision="f" * 40), r"did not give the rest \(LocalEntryNotFoundError\)")


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


# What the config does not pin: the lock file


def unpinned(revision="main"):
    return {"kind": "hub", "id": "someone/tiny", "revision": revision}


HASHES = {name: digest(content) for name, content in FILES.items()}


def entries(target):
    return yaml.safe_load(target.lock.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["main", COMMIT])
def test_the_first_fetch_writes_the_commit_and_the_hash_of_every_file(target, cache, name):
    record = target.fetch(unpinned(name))
    assert record["revision"] == f"someone/tiny@{COMMIT}"
    assert record["source"] == unpinned(name)
    assert entries(target) == {f"someone/tiny@{name}": {"commit": COMMIT, "sha256": HASHES}}
    assert target.lock.read_text().startswith("# Written by the first fetch")


def test_a_training_checkpoint_is_a_revision_with_an_entry_of_its_own(target, cache):
    (cache.parents[1] / "refs" / "step1000").write_text(COMMIT)
    target.fetch(unpinned())
    target.fetch(unpinned("step1000"))
    assert list(entries(target)) == ["someone/tiny@main", "someone/tiny@step1000"]


def test_a_commit_with_hashes_in_the_config_needs_no_lock(target, cache):
    target.fetch(hub())
    assert not target.lock.exists()


def test_hashes_in_the_config_hold_also_where_a_branch_is_locked(target, cache):
    target.refused(hub(revision="main", sha256={"model.safetensors": "f" * 64}), "the config pins")
    target.fetch(hub(revision="main"))
    assert entries(target)["someone/tiny@main"]["commit"] == COMMIT


def test_a_branch_that_moved_is_held_where_it_was(target, cache):
    target.fetch(unpinned())
    later = fill(cache.with_name("f" * 40), FILES | {"model.safetensors": b"trained further"})
    (cache.parents[1] / "refs" / "main").write_text(later.name)
    record = target.fetch(unpinned())
    assert contents(target.snapshot) == FILES
    assert record["revision"] == f"someone/tiny@{COMMIT}"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_contents_that_are_not_the_locked_ones_are_refused_with_both_hashes(tmp_path, target, cache, name):
    target.fetch(unpinned())
    before = target.lock.read_bytes()
    (cache / name).unlink()
    (cache / name).write_bytes(b"other")
    with pytest.raises(Refusal, match="hub.lock.yaml pins") as refusal:
        target.fetch(unpinned())
    assert digest(b"other") in str(refusal.value) and HASHES[name] in str(refusal.value)
    assert target.lock.read_bytes() == before


def test_of_a_locked_source_nothing_is_linked_that_the_lock_does_not_hold(target, cache):
    target.fetch(unpinned())
    fill(cache, {"added_tokens.json": b"{}"})
    assert target.fetch(unpinned())["files"] == HASHES
    assert contents(target.snapshot) == FILES


def test_files_of_one_repository_in_two_formats_have_an_entry_each(target, cache):
    fill(cache, {"q4.gguf": b"four bits", "q8.gguf": b"eight bits"})
    for source in (unpinned(), *(unpinned() | {"gguf_file": name} for name in ("q4.gguf", "q8.gguf"))):
        target.fetch(source)
        # The second time from the lock.
        target.fetch(source)
    found = entries(target)
    assert list(found) == [f"someone/tiny@main{name}" for name in ("", "/q4.gguf", "/q8.gguf")]
    assert "q8.gguf" not in found["someone/tiny@main/q4.gguf"]["sha256"]


def test_a_cache_without_a_locked_file_is_not_whole(target, cache):
    target.fetch(unpinned())
    (cache / "tokenizer.json").unlink()
    (cache / "vocab.json").write_text("{}")
    with pytest.raises(Refusal, match=r"not whole .* no tokenizer\.json") as refusal:
        target.fetch(unpinned())
    assert f"hf download someone/tiny --revision {COMMIT}" in str(refusal.value)


def test_files_of_other_formats_in_a_cache_are_neither_linked_nor_locked(target, cache):
    fill(cache, {"tf_model.h5": b"x", "flax_model.msgpack": b"x", "other.safetensors": b"x", "README.md": b"x"})
    target.fetch(unpinned())
    assert contents(target.snapshot) == FILES
    assert entries(target)["someone/tiny@main"]["sha256"] == HASHES


def test_a_sharded_model_is_whole_when_all_shards_of_its_index_are_there(target, cache):
    (cache / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.dumps({"weight_map": {"a": names[0], "b": names[1]}}).encode()
    fill(cache, {"model.safetensors.index.json": index, names[0]: b"first"})
    target.refused(unpinned(), f"no {names[1]}")
    assert not target.lock.exists()
    fill(cache, {names[1]: b"second"})
    assert target.fetch(unpinned())["files"].keys() >= set(names)


def test_a_repository_of_pickles_is_refused_and_nothing_is_locked(target, cache):
    (cache / "model.safetensors").unlink()
    fill(cache, {"pytorch_model.bin": b"\x80\x04."})
    target.refused(unpinned(), r"no model\.safetensors")
    assert not target.lock.exists()


def test_a_repository_of_pickles_on_the_hub_is_told_with_the_conversion(target, cache, monkeypatch):
    (cache / "model.safetensors").unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    real = huggingface_hub.snapshot_download
    online = lambda *args, local_files_only=False, **options: real(*args, local_files_only=True, **options)  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "snapshot_download", online)
    monkeypatch.setattr(
        huggingface_hub, "list_repo_files", lambda *args, **options: ["config.json", "pytorch_model.bin"]
    )
    message = target.refused(unpinned(), "has its weights only as pickle")
    assert "pytorch_model.bin" in message
    assert "AutoModel.from_pretrained(PATH).save_pretrained(NEW_PATH)" in message


def test_fetches_at_the_same_time_lose_no_entry(tmp_path):
    path = tmp_path / "hub.lock.yaml"
    names = [f"someone/model{i}" for i in range(24)]
    with ThreadPoolExecutor(8) as jobs:
        list(jobs.map(lambda name: lock(path, {"id": name, "revision": "main"}, COMMIT, HASHES), names))
    assert sorted(yaml.safe_load(path.read_text())) == sorted(f"{name}@main" for name in names)


def test_an_entry_that_another_fetch_wrote_meanwhile_is_not_overwritten(tmp_path):
    path, source = tmp_path / "hub.lock.yaml", {"id": "someone/tiny", "revision": "main"}
    lock(path, source, COMMIT, HASHES)
    lock(path, source, COMMIT, HASHES)
    with pytest.raises(Refusal, match=f"was locked at {COMMIT} by another fetch"):
        lock(path, source, "f" * 40, HASHES)
    assert locked(path, source)["commit"] == COMMIT


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_lock_file_that_may_not_be_written_is_told_with_the_key_that_places_it(target, cache, monkeypatch, code):
    def no_writing(path, mode):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(hub_lock, "open", no_writing, raising=False)
    with pytest.raises(Refusal, match="set hub_lock in your config to an absolute path of your own") as refusal:
        target.fetch(unpinned())
    assert str(target.lock) in str(refusal.value) and os.strerror(code) in str(refusal.value)
    assert not target.snapshot.exists()


@pytest.mark.parametrize("text", ["- a list\n", "a: [\n", "someone/tiny@main: {commit: x}\n", "just text\n"])
def test_a_lock_file_that_is_none_is_refused_by_name(target, cache, text):
    target.lock.parent.mkdir()
    target.lock.write_text(text)
    with pytest.raises(Refusal, match=r"hub\.lock\.yaml: .* Restore it from git, or delete it"):
        target.fetch(unpinned())
    assert target.lock.read_text() == text


@pytest.mark.parametrize("error", ["RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError"])
def test_what_the_hub_does_not_have_is_told_apart_from_a_hub_that_is_not_there(target, cache, monkeypatch, error):
    real = huggingface_hub.snapshot_download

    def refusing(*args, local_files_only=False, **options):
        if local_files_only:
            return real(*args, local_files_only=True, **options)
        raise getattr(huggingface_hub.errors, error)(
            "no", response=httpx2.Response(404, request=httpx2.Request("GET", "x"))
        )

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refusing)
    assert "Check id and revision" in target.refused(
        unpinned("nowhere"), f"the hub has no someone/tiny at nowhere .*{error}"
    )


# What pins a source


def test_a_revision_is_one_string_per_source():
    assert revision({"kind": "pypi", "package": "tiny-model", "version": "1.0"}) == "tiny-model==1.0"
    assert revision({"kind": "hub", "id": "someone/tiny", "revision": "main"}, COMMIT) == f"someone/tiny@{COMMIT}"
    assert revision({"kind": "local", "path": "x"}) == "local"


def test_a_sha256_is_of_the_contents(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert sha256_of(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
