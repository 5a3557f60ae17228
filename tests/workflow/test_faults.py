"""Disks that are full, elsewhere, broken or read-only, and two runs at once: one message each, and nothing is lost."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from faults import jobs, make_small, require_same, require_whole, wait_for
from project import Project

STATES = "results/states/tiny/trained/fox.parquet"
DRAWN_STATES = "results/states/tiny/norm-matched-s0/fox.parquet"
METRIC = "results/metrics/spectral_k/tiny/trained/fox.parquet"
TABLE = "results/tables/spectral_k.parquet"
FIGURE = "results/figures/energy/b2.svg"
REPORT = "results/report/index.html"


@pytest.fixture
def project(small, tmp_path):
    """A copy of the small finished project, to harm."""
    return small.copy(tmp_path / "project")


def require_made_again(project, small):
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    assert project.planned() == {}
    require_same(project, small)


# A full disk

JOB = "workflow/scripts/collapse/job.py"
NO_LARGE_FILES = (
    "    import resource\n\n    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
)


class SmallDisk(Project):
    """A project whose results lie on a disk of 32 MB, which can be filled.

    The disk is a tmpfs in a namespace of users and mounts, which any user may make on most machines. In most containers
    nobody may; there, jobs get the next best: a limit of 1000 bytes on the files they write.
    """

    def __init__(self, root, enter):
        super().__init__(root)
        self.enter = enter
        self.inside = self
        self.reason = "File too large"
        if enter:
            # The namespace as it is seen from outside.
            self.inside = Project(f"/proc/{enter[2]}/root{root}")
            self.reason = "No space left on device"

    def run(self, command, **options):
        if self.enter:
            command = [*self.enter, "env", f"--chdir={self.root}", *command]
        return super().run(command, **options)

    def fill(self):
        if self.enter:
            with pytest.raises(OSError), open(self.inside.root / "results/ballast", "wb", buffering=0) as ballast:
                while True:
                    ballast.write(bytes(4096))
        else:
            self.edit(JOB, "    faulthandler.enable()\n", NO_LARGE_FILES)

    def make_room(self):
        if self.enter:
            (self.inside.root / "results/ballast").unlink()
        else:
            self.edit(JOB, NO_LARGE_FILES, "    faulthandler.enable()\n")


@pytest.fixture
def on_small_disk(project):
    script = 'mkdir -p "$1.disk"; mount -t tmpfs -o size=32m tmpfs "$1.disk"; cp -a "$1/." "$1.disk"; '
    # Last, so that nothing has changed where no mount is allowed.
    script += 'mount --bind "$1.disk" "$1"'
    for unshare, nsenter in (
        (["--user", "--map-root-user"], ["--user", "--preserve-credentials"]),
        # Root, where nobody may make a namespace of users.
        ([], []),
    ):
        holder = subprocess.Popen(
            [
                "unshare",
                *unshare,
                "--mount",
                "bash",
                "-ec",
                f"{script}\necho ready\nread",
                "-",
                project.root / "results",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Its end, when this closes its input, is the end of the namespace.
        with holder:
            if holder.stdout.readline() == "ready\n":
                yield SmallDisk(project.root, ["nsenter", "--target", str(holder.pid), *nsenter, "--mount"])
                return
    yield SmallDisk(project.root, None)


def test_a_full_disk_is_told_with_file_and_cause_and_leaves_nothing(on_small_disk, small):
    project, inside = on_small_disk, on_small_disk.inside
    # All that write differently, from the last on: what is missing would be made before what needs it.
    for targets in ([REPORT], [METRIC, FIGURE], [STATES, DRAWN_STATES]):
        for target in targets:
            for path in (inside.root / target).parent.glob(f"{Path(target).stem}.*"):
                # A figure has three files; Snakemake would remove those left, and make room.
                path.unlink()
        project.fill()
        done = project.snakemake("--keep-going", *targets)
        project.make_room()
        assert done.returncode == 1
        for target in targets:
            named = target.replace(DRAWN_STATES, "results/weights/tiny/norm-matched-s0/.drawn")
            told = f"Refused: {named}: could not be written: {project.reason}. Nothing of it was kept. Make room"
            assert done.stdout.count(told) == 1, done.stdout
            assert not (inside.root / target).exists()
        assert "Traceback" not in done.stdout
        assert not list((inside.root / "results").rglob(".*partial*"))
        require_whole(inside)
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    require_same(inside, small)


# Parquet files that are not what was written


def cut_short(content):
    return content[: len(content) // 2]


def with_a_hole(content):
    """As after a block of the disk was lost: both ends are right."""
    third = len(content) // 3
    return content[:third] + bytes(third) + content[2 * third :]


@pytest.mark.parametrize(("broken", "missing"), [(STATES, METRIC), (METRIC, TABLE), (TABLE, REPORT)])
def test_a_broken_parquet_file_is_named_by_its_reader_with_what_to_do(project, small, broken, missing):
    path = project.root / broken
    content, times = path.read_bytes(), path.stat()
    (project.root / missing).unlink()
    for harm in (cut_short, with_a_hole):
        path.write_bytes(harm(content))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        done = project.snakemake(missing)
        assert done.returncode == 1
        assert done.stdout.count(f"Refused: {broken}: cannot be read as parquet (") == 1, done.stdout
        assert "Delete it and run again." in done.stdout and "Traceback" not in done.stdout
        assert not (project.root / missing).exists()
    path.unlink()
    require_made_again(project, small)


# Two runs at once


def test_a_second_run_in_the_same_directory_is_refused_and_harms_nothing(project, small):
    (project.root / DRAWN_STATES).unlink()
    running = project.start(DRAWN_STATES)
    wait_for(lambda: jobs(running.pid), running)
    second = project.snakemake(DRAWN_STATES)
    assert second.returncode == 1
    assert "Directory cannot be locked" in second.stdout
    assert f"{project.root} is locked: another Snakemake runs here" in second.stdout
    assert running.wait() == 0, (project.root / "output.txt").read_text()
    assert not list((project.root / ".snakemake").glob("locks/*"))
    require_made_again(project, small)


def test_a_run_that_ends_leaves_the_weights_that_another_uses(finished, tmp_path):
    """Runs whose outputs differ may go on at once; the first to end discards the weights that no job uses."""
    project = finished.copy(tmp_path / "project")
    states = [f"results/states/tiny/norm-matched-s0/{prompt}.parquet" for prompt in ("fox", "markup")]
    for path in states:
        (project.root / path).unlink()
    running = project.start(states[0])
    wait_for(lambda: jobs(running.pid), running)
    second = project.snakemake(states[1])
    assert second.returncode == 0, second.stdout
    assert running.wait() == 0, (project.root / "output.txt").read_text()
    require_whole(project)
    for path in states:
        assert (project.root / path).read_bytes() == (finished.root / path).read_bytes()


# Results on another file system, and a checkout that may not be written


@pytest.fixture
def elsewhere(tmp_path):
    """A directory on another file system than the project's."""
    here = os.stat(tmp_path).st_dev
    places = ["/dev/shm", f"/run/user/{os.getuid()}", "/run/lock", "/var/tmp", "/tmp", Path.home()]
    others = [place for place in places if os.access(place, os.W_OK) and os.stat(place).st_dev != here]
    assert others, f"none of {places} is a writable directory on another file system than {tmp_path}"
    with tempfile.TemporaryDirectory(dir=others[0]) as directory:
        yield Path(directory)


def test_results_may_lie_on_another_file_system(tiny_gpt2, elsewhere, small, tmp_path):
    project = Project.create(tmp_path / "project", {"tiny": tiny_gpt2})
    make_small(project)
    (project.root / "results").symlink_to(elsewhere)
    require_made_again(project, small)
    assert (elsewhere / "tables/energy.parquet").is_file()


def listing(directory):
    return sorted((path, path.lstat().st_mtime_ns) for path in directory.rglob("*"))


def test_a_checkout_that_may_not_be_written_computes_into_another_directory(tiny_gpt2, small, tmp_path):
    """EM06, EM07: nor may the home directory, where libraries keep what they cache."""
    checkout = Project.create(tmp_path / "checkout", {"tiny": tiny_gpt2})
    make_small(checkout)
    work = Project(tmp_path / "work")
    work.root.mkdir()
    # Root may write anything, unless it gives that up.
    as_user = [] if os.getuid() else ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    home = {"HOME": str(checkout.root), "XDG_CACHE_HOME": str(work.root / "cache")}
    command = [*as_user, *checkout.command(config=str(checkout.config_path)), "--directory", str(work.root)]
    subprocess.run(["chmod", "-R", "a-w", checkout.root], check=True)
    try:
        before = listing(checkout.root)
        assert checkout.run([*as_user, "touch", checkout.root / "new"]).returncode
        done = checkout.run(command, env=os.environ | home)
        assert done.returncode == 0, done.stdout
        again = checkout.run(command, env=os.environ | home)
        assert "Nothing to be done" in again.stdout
        assert listing(checkout.root) == before
    finally:
        subprocess.run(["chmod", "-R", "u+w", checkout.root], check=True)
    require_same(work, small)
