"""A working copy of the repository with a tiny local model, and Snakemake run in it as a user runs it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "environment.yml", "workflow", "profiles", "config", "resources")

PROMPTS = {
    "fox": "The quick brown fox jumps over the lazy dog , and the dog sleeps on .\n",
    "markup": "<script>alert(1)</script> & the dog & the fox\n",
    "third": "A dog and a fox are in the house .\n",
}


class Project:
    """A copy of the workflow in a directory of its own."""

    def __init__(self, root):
        self.root = Path(root)
        self.config_path = self.root / "tiny.yaml"

    @classmethod
    def create(cls, root, models):
        """Copy the workflow into `root`; `models` maps names to (directory, pins)."""
        project = cls(root)
        project.root.mkdir(parents=True)
        for part in PARTS:
            source = REPOSITORY / part
            if source.is_dir():
                shutil.copytree(source, project.root / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, project.root / part)
        header = "name\tfile\tlanguage\tkind\tgpt2_tokens\treplaces\tlicence\tdescription\n"
        rows = [f"{name}\t{name}.txt\ten\ttest\t\t\tMIT\ta test\n" for name in PROMPTS]
        (project.root / "prompts").mkdir()
        (project.root / "prompts" / "prompts.tsv").write_text(header + "".join(rows))
        for name, text in PROMPTS.items():
            (project.root / "prompts" / f"{name}.txt").write_text(text)
        project.write_config(
            {
                "models": [
                    {"name": name, "source": {"kind": "local", "path": str(path), "sha256": pins}}
                    for name, (path, pins) in models.items()
                ],
                "prompts": ["fox", "markup"],
                "prompts_table": "prompts/prompts.tsv",
                "weights": [
                    {"scheme": "trained"},
                    {"scheme": "norm-matched", "seeds": [0, 1]},
                    {"scheme": "identity", "betas": [1]},
                ],
                "energy": {"betas": [0.5, 2]},
            }
        )
        return project

    def copy(self, root):
        """Copy everything, results and Snakemake's own records too, with all file times."""
        shutil.copytree(self.root, root, symlinks=True)
        return Project(root)

    def config(self):
        return yaml.safe_load(self.config_path.read_text())

    def write_config(self, config):
        self.config_path.write_text(yaml.safe_dump(config, sort_keys=False))

    def command(self, *arguments, config=None):
        """Return the command that runs snakemake with 2 cores."""
        command = [sys.executable, "-m", "snakemake", *arguments, "--cores", "2"]
        return [*command, "--configfile", config or self.config_path.name]

    def snakemake(self, *arguments, config=None):
        """Run snakemake here; return the finished process with all output in `stdout`."""
        return self.run(self.command(*arguments, config=config))

    def run(self, command, **options):
        """Run a command here; return the finished process with all output in `stdout`."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
        return subprocess.run(command, cwd=self.root, **options)

    def start(self, *arguments):
        """Start snakemake here, in a process group of its own; its output goes to the file `output.txt`."""
        with open(self.root / "output.txt", "w") as output:
            return subprocess.Popen(
                self.command(*arguments), cwd=self.root, stdout=output, stderr=output, start_new_session=True
            )

    def planned(self, *arguments, config=None):
        """Return {rule: number of jobs} that a dry run plans; empty where there is nothing to do."""
        done = self.snakemake("--dry-run", *arguments, config=config)
        assert done.returncode == 0, done.stdout
        if "Nothing to be done" in done.stdout:
            return {}
        stats = done.stdout.split("Job stats:")[1]
        jobs = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", stats, flags=re.MULTILINE)}
        jobs.pop("total")
        return jobs

    def edit(self, path, old, new):
        """Replace text that must be there exactly once."""
        file = self.root / path
        text = file.read_text()
        assert text.count(old) == 1, f"{path} has {text.count(old)} times {old!r}"
        file.write_text(text.replace(old, new))
