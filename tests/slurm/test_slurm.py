"""profiles/slurm on a real SLURM: what is submitted, with what, and what happens when SLURM ends a job early."""

import re

from submission import Submission

from collapse import tables

ENERGY = "workflow/scripts/collapse/metrics/energy.py"
ONE_FILE = "results/metrics/energy/b2/tiny/trained/fox.parquet"


def before_energy(project, statement):
    """Have the metric do something before it computes."""
    first = "    before, why_none = None, FIRST_LAYER\n"
    project.edit(ENERGY, first, f"    {statement}\n{first}")


def asks_for_gpus(cluster, job):
    return sorted(set(re.findall(r"gpu[:=](\d+)", cluster.run("scontrol", "show", "job", job["id"]))))


def test_after_the_fetch_slurm_runs_every_job_to_the_report(finished):
    submission, plan = finished.submission, dict(finished.plan)
    assert submission.local_rules() == {"all": plan.pop("all")}
    assert submission.rules() == plan
    assert {job["state"] for job in submission.jobs} == {"COMPLETED"}
    assert "The report is at results/report/index.html" in submission.output()
    assert (finished.root / "results/report/index.html").is_file()
    energy = tables.read(finished.root / "results/tables/energy.parquet", "energy")
    assert set(energy["weights"].to_pylist()) == {"trained", "norm-matched-s0", "identity-b1"}


def test_one_submission_holds_many_jobs_and_forward_passes_have_their_partition(finished, cluster):
    comments = sorted(job["comment"] for job in finished.submission.jobs)
    weights = ["identity-b1", "norm-matched-s0", "trained"]
    metrics = "metrics_clusters_metric_at_beta_metric_of_clusters"
    assert comments == sorted(
        [f"rule_tiny-{w}-{metrics}" for w in weights]
        + [f"rule_tiny-{w}-states_extract" for w in weights[1:]]
        + ["rule_tiny-identity-b1-theory_identity_states"]
        + ["rule_trained_weights_wildcards_tiny", "rule_draw_weights_wildcards_tiny_norm-matched-s0"]
        + [f"rule_aggregate_wildcards_{table}" for table in ("cluster_labels", "cluster_life", "clusters", "energy")]
        + ["rule_runs_table", "rule_score_claims", "rule_figures_draw_figure", "rule_write_report"]
    )
    for job in finished.submission.jobs:
        assert job["partition"] == ("gpu" if "extract" in job["comment"] else "cpu")
        assert asks_for_gpus(cluster, job) == []


def test_a_second_submission_does_nothing(finished, cluster):
    again = Submission(cluster, finished).wait()
    assert again.code == 0
    assert "Nothing to be done" in again.output()
    assert again.jobs == []


def test_an_edited_metric_submits_that_metric_and_what_is_drawn_from_it(changed, cluster):
    before_energy(changed, "print('edited')")
    submission = Submission(cluster, changed).wait()
    assert submission.code == 0, submission.output()
    assert submission.rules() == {
        "aggregate": 1,
        "draw_figure": 2,
        "metric_at_beta": 3,
        "score_claims": 1,
        "write_report": 1,
    }
    assert submission.local_rules() == {"all": 1}


def test_a_job_killed_for_memory_comes_back_with_more(changed, cluster):
    # Once for each token rule, and not twice at a time.
    before_energy(changed, "import time; much = bytearray(b'1') * 1_000_000_000; time.sleep(3); del much")
    submission = Submission(cluster, changed, ONE_FILE).wait()
    assert submission.code == 0, submission.output()
    assert [(job["memory"], job["state"]) for job in submission.jobs] == [("1000M", "FAILED"), ("2000M", "COMPLETED")]
    assert "exceeded memory limit" in submission.output()


def test_a_cancelled_job_is_noticed_and_submitted_again(changed, cluster):
    before_energy(changed, "import os, time; time.sleep(0 if os.path.exists('cancelled') else 300)")
    submission = Submission(cluster, changed, ONE_FILE)
    job = submission.wait_for("RUNNING")
    (changed.root / "cancelled").touch()
    cluster.run("scancel", job["id"])
    submission.wait()
    assert submission.code == 0, submission.output()
    assert [job["state"] for job in submission.jobs] == ["CANCELLED", "COMPLETED"]
    assert re.search(rf"JOB {job['id']} .* CANCELLED", submission.output())


def test_stopping_snakemake_cancels_what_it_submitted(changed, cluster):
    before_energy(changed, "import time; time.sleep(300)")
    submission = Submission(cluster, changed, ONE_FILE)
    submission.wait_for("RUNNING")
    submission.stop()
    assert submission.code == 1
    assert [job["state"] for job in submission.jobs] == ["CANCELLED"]
    assert changed.planned(ONE_FILE) == {"metric_at_beta": 1}


def test_a_forward_pass_on_cuda_asks_for_one_gpu(changed, cluster):
    config = changed.config()
    config["extraction"] = {"device": "cuda"}
    changed.write_config(config)
    submission = Submission(cluster, changed, "results/states/tiny/trained/fox.parquet")
    job = submission.wait_for("RUNNING")
    assert job["partition"] == "gpu"
    assert asks_for_gpus(cluster, job) == ["1"]
    submission.stop()
