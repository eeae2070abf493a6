"""The recipes for clusters: whole files, whose commands work, and which begin again when they should.

There is no cluster here. What it does is stood in for: `srun`, `scontrol`, `kaem` and Ray are small programs
that come first where programs are looked for, and the processes are of this machine.
"""

import ast
import json
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import kaem
from kaem.cli import launching, parser
from kaem.runs import RunFolder, settings_of
from support.pages import ROOT

FOLDER = ROOT / "docs" / "how-to" / "cluster"
RECIPES = ("svhn.sbatch", "jobset.yaml", "sky.yaml", "ray_train.py")
SOURCE = str(Path(kaem.__file__).parents[1])

KAEM_NOTES = """#!/bin/bash
# Notes its arguments, and ends with the code it is told: the first, or the second when run again.
name=$NOTES/arguments-${SLURM_PROCID:-${@: -1}}
again=$([ -e "$name" ] && echo yes)
printf '%s\\n' "$@" > "$name"
[ "$again" ] && exit "${SECOND:-0}"
exit "${FIRST:-0}"
"""
KAEM_TRAINS = f"""#!/bin/bash
exec {sys.executable} -m kaem "${{@/:4000/:$PORT}}" $MORE
"""
SRUN = f"""#!{sys.executable}
# Starts the tasks of a step with the variables that Slurm gives them; ends with the highest exit code.
import os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
tasks = int(os.environ["TASKS"])
step = os.environ | {{"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": str(tasks)}}
running = [
    subprocess.Popen(words, env=step | {{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}})
    for i in range(tasks)
]
sys.exit(max(one.wait() % 256 for one in running))
"""
SCONTROL = """#!/bin/bash
echo "$@" >> "$NOTES/scontrol"
"""
# As much of Ray as the recipe uses: tasks are threads.
RAY = """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor()
def init(): pass
def get(task): return task.result() if hasattr(task, "result") else task
class Remote:
    def __init__(self, function): self.function = function
    def options(self, scheduling_strategy): return self
    def remote(self, *arguments): return pool.submit(self.function, *arguments)
def remote(max_retries, num_cpus, num_gpus): return Remote
from . import exceptions, util
"""
RAY_PARTS = {
    "exceptions": "class RayError(Exception): pass",
    "util/__init__": "def get_node_ip_address(): return '127.0.0.1'",
    "util/placement_group": """
class placement_group:
    def __init__(self, bundles, strategy): assert strategy == "STRICT_SPREAD" and len(bundles) == 2
    def ready(self): return None
def remove_placement_group(group): pass
""",
    "util/scheduling_strategies": """
def PlacementGroupSchedulingStrategy(placement_group, placement_group_bundle_index): return None
""",
}


def text(recipe):
    return (FOLDER / recipe).read_text("utf8")


def pod():
    """What the JobSet says of its pods."""
    (job,) = yaml.safe_load(text("jobset.yaml"))["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]["spec"]


def shell(recipe):
    """The script of a recipe, and the variables it sets for it."""
    if recipe == "jobset.yaml":
        (container,) = pod()["containers"]
        assert container["command"][:2] == ["bash", "-c"]
        return container["command"][2], {v["name"]: v["value"] for v in container["env"]}
    if recipe == "sky.yaml":
        told = yaml.safe_load(text(recipe))
        return told["run"], told["envs"]
    return text(recipe), {}


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, "utf8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def cluster(tmp_path):
    """Return a function that runs a recipe for each of two machines, as its cluster would."""

    def run(recipe, program, **variables):
        for name, content in {"kaem": program, "srun": SRUN, "scontrol": SCONTROL}.items():
            written(tmp_path / "bin" / name, content)
        for name, content in {"__init__": RAY, **RAY_PARTS}.items():
            written(tmp_path / "stubs" / "ray" / f"{name}.py", content)
        script, own = shell(recipe)
        own = own | {"COORDINATOR": "127.0.0.1"} | variables
        everywhere = {
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{tmp_path / 'stubs'}{os.pathsep}{SOURCE}",
            "NOTES": str(tmp_path),
            "SLURM_JOB_ID": str(os.getpid()),
            "TASKS": "2",
            "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
            "SKYPILOT_NUM_NODES": "2",
        }
        command = ["bash", "-c", script]
        if recipe == "ray_train.py":
            command = [sys.executable, str(FOLDER / recipe)]
        machines = 2 if recipe.endswith(".yaml") else 1  # the others start theirs themselves
        started = [
            subprocess.Popen(
                command,
                env=os.environ
                | everywhere
                | own
                | {"JOB_COMPLETION_INDEX": str(i), "SKYPILOT_NODE_RANK": str(i)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for i in range(machines)
        ]
        told = [one.communicate(timeout=500)[1] for one in started]
        return [one.returncode for one in started], told

    return run


def arguments(folder):
    """What the processes were given, by their files."""
    return [path.read_text().splitlines() for path in sorted(folder.glob("arguments-*"))]


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_is_whole(recipe):
    """It has no mistakes of form, and nothing of it is left out."""
    if recipe == "ray_train.py":
        ast.parse(text(recipe))
    else:
        script = shell(recipe)[0]
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert "..." not in text(recipe)


@pytest.mark.parametrize("recipe", RECIPES)
def test_command_of_a_recipe_is_one_that_kaem_has(recipe, cluster, tmp_path):
    codes, told = cluster(recipe, KAEM_NOTES)
    assert not any(codes), told
    given = arguments(tmp_path)
    assert len(given) == 2
    found = [parser().parse_args(words) for words in given]
    for options in found:
        launching.check(options)
        assert options.resume == "auto"
        settings = settings_of(options.what, set=options.set, data=options.data)
        # Two machines with four GPUs each share the batch.
        assert settings.training.batch_size % 8 == 0
    if recipe == "svhn.sbatch":
        assert {options.distributed for options in found} == {"auto"}
        return
    assert {options.distributed for options in found} == {"127.0.0.1:4000"}
    assert [options.processes for options in found] == [2, 2]
    assert [options.process_id for options in found] == [0, 1]


@pytest.mark.parametrize(
    ("code", "restarts", "again"),
    [(0, 0, False), (75, 0, True), (75, 99, True), (137, 9, True), (137, 10, False), (2, 0, False)],
)
def test_slurm_job_is_queued_again_when_that_helps(code, restarts, again, cluster, tmp_path):
    told = {"FIRST": str(code), "TASKS": "1", "SLURM_RESTART_COUNT": str(restarts)}
    codes, _ = cluster("svhn.sbatch", KAEM_NOTES, **told)
    assert codes == [code]
    asked = tmp_path / "scontrol"
    assert asked.exists() == again
    if again:
        assert asked.read_text() == f"requeue {os.getpid()}\n"


def test_slurm_signals_the_processes_and_not_the_script():
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text("svhn.sbatch"), re.M))
    assert options["signal"] == "TERM@120"  # B: would go to the script alone
    assert "requeue" in options
    assert options["open-mode"] == "append"
    # JAX gives each task under Slurm one GPU, by its number on the machine: all must be seen.
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert "--kill-on-bad-exit=0" in text("svhn.sbatch")


def test_jobset_begins_again_after_a_stop_and_ends_after_mistakes():
    told = yaml.safe_load(text("jobset.yaml"))
    assert (told["apiVersion"], told["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (rule,) = told["spec"]["failurePolicy"]["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    (replicated,) = told["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    exits, taken = job["podFailurePolicy"]["rules"]
    (container,) = pod()["containers"]
    assert exits["onExitCodes"]["values"] == [75]
    assert exits["onExitCodes"]["containerName"] == container["name"]
    assert taken["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert (job["backoffLimit"], job["completionMode"]) == (0, "Indexed")
    assert pod()["restartPolicy"] == "Never"  # or a policy of exit codes is refused
    assert pod()["terminationGracePeriodSeconds"] > 30
    variables = shell("jobset.yaml")[1]
    assert variables["PROCESSES"] == str(job["completions"]) == str(job["parallelism"])
    name = told["metadata"]["name"]
    assert variables["COORDINATOR"] == f"{name}-{replicated['name']}-0-0.{name}"
    # The signal reaches kaem, and not a shell that keeps it.
    assert shell("jobset.yaml")[0].startswith("exec kaem ")
    volumes = {v["name"] for v in pod()["volumes"]}
    (mount,) = container["volumeMounts"]
    assert mount["name"] in volumes
    assert all(variables[name].startswith(mount["mountPath"]) for name in ("DATA", "RUN"))


def test_sky_begins_again_after_a_stop_with_the_run_in_a_bucket():
    told = yaml.safe_load(text("sky.yaml"))
    assert told["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    mounts = told["file_mounts"]
    (runs,) = [m for path, m in mounts.items() if told["envs"]["RUN"].startswith(path)]
    assert runs["mode"] == "MOUNT_CACHED"  # what MOUNT mounts cannot be appended to
    assert any(told["envs"]["DATA"].startswith(path) for path in mounts)


@pytest.mark.parametrize(("first", "second", "code"), [(75, 0, 0), (2, 0, 2), (137, 1, 1)])
def test_ray_starts_all_again_after_a_stop_and_ends_after_a_mistake(first, second, code, cluster):
    codes, told = cluster("ray_train.py", KAEM_NOTES, FIRST=str(first), SECOND=str(second))
    assert codes == [code], told


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_trains_one_run_with_two_processes(recipe, cluster, tmp_path):
    data, out = tmp_path / "svhn.npy", tmp_path / "runs" / "svhn"
    np.save(data, np.random.default_rng(0).integers(0, 255, (300, 32, 32, 3), np.uint8))
    small = {
        "training.batch_size": 8,
        "training.log_every": 2,
        "prior.coordinates": 4,
        "prior.grid_size": 5,
        "generator.widths": [8],
        "encoder.widths": [4, 8],
        "upkeep.alignments": 0,
    }
    more = ["--steps 4", "--no-report"]
    more += [f"--set {name}={json.dumps(v, separators=(',', ':'))}" for name, v in small.items()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {"DATA": str(data), "RUN": str(out), "PORT": port, "MORE": " ".join(more)}
    codes, told = cluster(recipe, KAEM_TRAINS, **where)
    assert not any(codes), told
    assert RunFolder(out).step() == 4
    assert [path.name for path in out.parent.iterdir()] == ["svhn"]
    codes, told = cluster(recipe, KAEM_TRAINS, **where)  # finds it finished
    assert not any(codes), told
