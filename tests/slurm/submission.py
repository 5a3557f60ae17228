"""Snakemake, run on a cluster through the profile as a user runs it."""

import re
import signal
import subprocess
import sys
import time

PROFILE = ("--workflow-profile", "profiles/slurm")
# This cluster has no accounting, and its jobs take seconds: docs/cluster.md.
HERE = ("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2")


class Submission:
    """One run of Snakemake in a project, which goes on in the background until `wait`."""

    def __init__(self, cluster, project, *arguments):
        self.cluster, self.before = cluster, set(cluster.jobs())
        self._log = project.root / "submission.log"
        command = [sys.executable, "-m", "snakemake", *arguments, *PROFILE, *HERE, "--configfile", "tiny.yaml"]
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=project.root,
                env=cluster.env,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A shell lets what it starts in the background ignore Ctrl-C, and so would all that this starts.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def wait(self):
        """Wait for the end; return self with the exit code as `code` and the cluster's jobs as `jobs`."""
        try:
            self.code = self.process.wait(timeout=400)
        finally:
            self.process.kill()
        self.jobs = self.submitted()
        return self

    def stop(self):
        """Stop Snakemake as Ctrl-C does, and wait for its end."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def output(self):
        return self._log.read_text()

    def submitted(self):
        """Return what the cluster knows of the jobs of this run, in the order of submission."""
        return [job for number, job in sorted(self.cluster.jobs().items()) if number not in self.before]

    def rules(self):
        """Return {rule: number of jobs} of what was handed to the cluster, first attempts and later ones."""
        return _counts(re.findall(r"^ *rule (\w+):$", self.output(), flags=re.MULTILINE))

    def local_rules(self):
        """Return {rule: number of jobs} of what Snakemake ran itself."""
        return _counts(re.findall(r"^ *localrule (\w+):$", self.output(), flags=re.MULTILINE))

    def wait_for(self, state):
        """Wait until a job of this run is in a state, and return it."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            for job in self.submitted():
                if job["state"] == state:
                    return job
            time.sleep(0.2)
        self.process.kill()
        raise TimeoutError(f"no job is {state}, but: {self.submitted()}\n{self.output()}")


def _counts(names):
    return {name: names.count(name) for name in sorted(set(names))}
