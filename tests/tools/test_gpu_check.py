"""tools/gpu_check.sh, which needs a GPU: its stages, and a run against stubs of what it calls."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "gpu_check.sh"
CUDA_TESTS = sorted((ROOT / "tests" / "cuda").glob("test_*.py"))

#: A Python that runs the tools here as they are, and pretends everything else.
PYTHON = f"""#!/usr/bin/env bash
case "$*" in
  "-c import torch; gpu"*) echo 9.0 ;;
  "-c import "*) exit 0 ;;
  -c*sysconfig*) echo /nowhere ;;
  -c*) echo 3.0 ;;
  tools/gpu_rehearsal.py) cat >rehearsed; exec pretended "$@" ;;
  tools/*) exec {sys.executable} "$@" ;;
  *) echo "$*"; exec pretended "$@" ;;
esac
"""
#: What stands in for commands. `pretended` runs for every command of Python.
STUBS = {
    "nvidia-smi": 'case "$*" in *compute_cap*) echo 9.0 ;; *) echo "NVIDIA Stub" ;; esac',
    "nvcc": 'echo "Cuda compilation tools, release 13.0, V13.0.0"',
    "ncu": 'echo "profiled: $*"',
    "compute-sanitizer": 'shift 4; while [[ $1 == --* ]]; do shift 2; done; exec "$@"',
    "cmake": "exit 0",
    # As long as the real list, which does not fit into a pipe.
    "cuobjdump": 'echo "ELF file 1: kernels.sm_90.cubin"; printf "ELF file %d\\n" {2..9999}',
    "pretended": "exit 0",
}
TUNE = """#!/usr/bin/env bash
while [[ $1 != --csv ]]; do shift; done
cat >"$2" <<END
op,direction,dtype,rows,cols,width,elements,threads,row_threads,blocks,partitions,segment,\
fixed,is_incumbent,median_us,copy_us,share_of_copy,bytes,difference,error
softmax,forward,bfloat16,1000,4096,8,16,256,256,1,0,0,0,1,10,9,0.9,16384,0,
softmax,forward,bfloat16,1000,8192,8,32,256,256,1,0,0,0,1,10,8,0.8,32768,0,
END
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


class Checkout:
    """A copy of what the script reads, with stubs on PATH."""

    def __init__(self, folder: Path):
        self.folder, self.programs = folder, folder / "programs"
        for name in ("gpu_check.sh", "gpu_summary.py", "pick_policy.py"):
            (folder / "tools").mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "tools" / name, folder / "tools")
        plans = "csrc/cuda/launch/plans.def"
        (folder / plans).parent.mkdir(parents=True)
        shutil.copy(ROOT / plans, folder / plans)
        (folder / "tests").mkdir()
        (folder / "fusedops" / "lib").mkdir(parents=True)
        (folder / "fusedops" / "lib" / "libfusedops_kernels_cuda.so").touch()
        for name, text in STUBS.items():
            write_program(self.programs / name, text)
        write_program(folder / "python", PYTHON)
        # Two benches say what eighteen would.
        self.edit(r"^OPS=\(.*?\)", "OPS=(softmax)")
        write_program(folder / "build" / "tune" / "tune", TUNE)

    def edit(self, pattern: str, replacement: str) -> None:
        """Changes the script."""
        script = self.folder / "tools" / "gpu_check.sh"
        text, count = re.subn(pattern, replacement, script.read_text(), flags=re.M | re.S)
        assert count == 1
        script.write_text(text)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "PYTHON": str(self.folder / "python"),
            "HOME": os.environ.get("HOME", "/"),
            **variables,
        }
        command = ["bash", str(self.folder / "tools" / "gpu_check.sh"), *arguments]
        # A shell cannot trap a signal that it inherits as ignored, as a job in the background does.
        command = ["env", "--default-signal=INT,TERM", *command]
        return subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, *arguments: str, **variables: str) -> tuple[int, str]:
        process = self.start(*arguments, **variables)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def stages(self, out: str = "out") -> dict[str, str]:
        """The status of each stage that was recorded."""
        lines = (self.folder / out / "stages.tsv").read_text().splitlines()
        return {name: status for name, _, status, _ in (line.split("\t") for line in lines)}

    def archived(self, out: str = "out") -> dict[str, str]:
        """The text files of the archive, by their names in the folder."""
        with tarfile.open(self.folder / f"{out}.tar.gz") as archive:
            files = [member for member in archive.getmembers() if member.isfile()]
            return {
                member.name.split("/", 1)[1]: archive.extractfile(member).read().decode("latin-1")
                for member in files
            }


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "fusedops")


@pytest.fixture(scope="module")
def dry(tmp_path_factory) -> str:
    code, output = Checkout(tmp_path_factory.mktemp("dry") / "fusedops").run("--dry-run")
    assert code == 0, output
    return output


def test_every_test_of_a_gpu_runs_in_one_of_two_stages(dry):
    stages = re.findall(r"^cuda(?:-decisive)? .*$", dry, re.MULTILINE)
    named = [re.findall(r"tests/cuda/(\S+)", stage) for stage in stages]
    assert sorted(sum(named, [])) == [path.name for path in CUDA_TESTS]
    assert named[0][0] == "test_cuda_every_kernel.py"


def test_the_stages_come_in_the_order_of_what_they_tell(dry):
    names = [
        line.split()[0] for line in dry.splitlines() if re.search(r" (correctness|speed) ", line)
    ]
    kinds = [re.sub(r"-.*", "", name) for name in names if name != "tune-build"]
    order = list(dict.fromkeys(kinds))
    assert " ".join(order) == (
        "smoke build entry env cuda tune policy bench memcheck racecheck ncu suite"
    )
    assert kinds.count("ncu") == 4 and names.index("cuda-decisive") < names.index("tune")


def test_the_stages_before_the_other_benches_fit_into_the_budget_together(dry):
    before = dry[: dry.index("\nbench-models")]
    limits = {
        name: int(seconds)
        for name, seconds in re.findall(r"^(\S+) +(?:correctness|speed) +(\d+) s ", before, re.M)
    }
    builds = sum(seconds for name, seconds in limits.items() if name.endswith("build"))
    planned = sum(limits.values()) - builds
    (budget,) = re.findall(r"^BUDGET=\$\{BUDGET:-(\d+)\}", SCRIPT.read_text(), re.M)
    assert planned <= int(budget)
    assert f"before the other benches: {planned} s of {budget} s, and {builds} s more" in before
    assert {"tune-build", "smoke", "tune", "cuda", "memcheck", "racecheck"} <= limits.keys()


def test_a_dry_run_tries_every_stage_and_fails_if_one_cannot_start(checkout):
    write_program(checkout.programs / "pretended", "exit 1")
    code, output = checkout.run("--dry-run")
    assert code == 1
    printed = re.findall(r"^(\S+) +(?:correctness|speed) +\d+ s ", output, re.M)
    lines = (checkout.folder / "rehearsed").read_text().splitlines()
    assert [line.partition("\t")[0] for line in lines] == printed
    assert not (checkout.folder / "FOLDER").exists()


PY = sys.executable
BROKEN_STAGES = {
    "bench": (f"{PY} -m fusedops bench --op sofmax --csv bench.csv", "invalid choice: 'sofmax'"),
    "models": (f"{PY} -m tools.bench models gpt2 --devise cuda", "--devise"),
    "cuda": (f"{PY} -m pytest -q test_broken.py", "No module named 'nowhere'"),
    "setup": (f"env A=1 {PY} setup.py built_ext", "invalid command 'built_ext'"),
    "policy": (f"bash -c '{PY} tools/pick_polcy.py tune.csv'", "can't open file"),
}


@pytest.mark.slow("starts Python with torch, and setuptools")
def test_a_stage_that_cannot_start_is_named_with_its_error(tmp_path):
    (tmp_path / "test_broken.py").write_text("import nowhere")
    commands = {name: command for name, (command, _) in BROKEN_STAGES.items()}
    commands["cuda"] = commands["cuda"].replace("test_broken", str(tmp_path / "test_broken"))
    commands["tune"] = f"{PY} -m fusedops tune --device cuda --budget 9"
    commands["profiler"] = "no-such-profiler --kernel-name softmax build/tune/tune --seconds 1"
    done = subprocess.run(
        [PY, ROOT / "tools" / "gpu_rehearsal.py"],
        input="".join(f"{name}\t{command}\n" for name, command in commands.items()),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr == ""
    told = dict(re.findall(r"^(\w+) cannot start:\n((?: {4}.*\n)+)", done.stdout, re.M))
    assert told.keys() == BROKEN_STAGES.keys()
    for name, (_, error) in BROKEN_STAGES.items():
        assert error in told[name], name
    assert "profiler is not tried: there is no no-such-profiler" in done.stdout
    assert "1 of 6 stages that were tried can start" in done.stdout


@pytest.mark.slow("collects every test: without a GPU nothing else imports those of one")
def test_every_stage_of_this_checkout_can_start():
    command = ["bash", str(SCRIPT), "--dry-run"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_keeps_a_summary_and_one_archive_in_a_folder_of_its_own(checkout):
    (checkout.folder / "out").mkdir()
    (checkout.folder / "out" / "old").write_text("kept")
    write_program(checkout.programs / "cuobjdump", 'echo "ELF file 1: kernels.sm_80.cubin"')
    write_program(checkout.programs / "pretended", '[[ "$*" != *tools.bench* ]]')
    code, output = checkout.run("out")
    assert code == 0, output  # the stage that failed measures, and tests nothing
    assert [path.name for path in (checkout.folder / "out").iterdir()] == ["old"]
    stages = checkout.stages("out-2")
    assert stages.pop("tune-build").startswith("left out")
    assert {stages.pop(name) for name in ("bench-models", "bench-memory")} == {"failed"}
    assert set(stages.values()) == {"passed"}
    files = checkout.archived("out-2")
    assert {"summary.md", "summary.json", "stages.tsv", "tune.csv", "logs/smoke.log"} <= set(files)
    summary = files["summary.md"]
    assert "# NVIDIA Stub" in summary and "| softmax forward | bfloat16 |  | 90 | 80 |" in summary
    assert "profiled: " in files["logs/ncu-norm_forward_cluster.log"]
    assert "racecheck.csv" in files
    # The library has no code for this GPU.
    assert "setup.py build_ext --inplace" in files["logs/background-build.log"]


@pytest.mark.exhaustive
def test_stages_a_build_and_a_tool_that_fail_or_hang_do_not_stop_the_rest(checkout):
    (checkout.folder / "fusedops" / "lib" / "libfusedops_kernels_cuda.so").unlink()
    (checkout.programs / "ncu").unlink()
    failing = '[[ "$*" != *test_cuda_values* && "$*" != *build_ext* ]]'
    write_program(checkout.programs / "pretended", failing)
    cut = TUNE.replace("\nEND\n", "\nsoftmax,forward,bfl\nEND\n")
    hanging = cut + '[[ "$2" != */tune.csv ]] || sleep 600\n'
    write_program(checkout.folder / "build" / "tune" / "tune", hanging)
    checkout.edit(r"^(stage tune \w+) \d+", r"\1 1")
    assert checkout.run("out")[0] == 1
    stages = checkout.stages()
    assert (stages["build"], stages["cuda"]) == ("failed", "failed")
    assert (stages["memcheck"], stages["suite"]) == ("passed", "passed")
    assert stages["tune"] == "over 1 s" and stages["ncu"] == "left out: ncu is not on PATH"
    files = checkout.archived()
    summary = files["summary.md"]
    assert "| cuda | correctness | failed |" in summary and "| 90 | 80 |" in summary
    assert files["tune.csv"].endswith("bfl\n")
    assert (
        "tune has not written this line, or not its end: softmax,forward,bfl"
        in files["logs/policy.log"]
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_an_interrupted_run_keeps_what_it_reached(checkout, which):
    write_program(checkout.programs / "pretended", '[[ "$*" != *test_cuda_values* ]] || sleep 600')
    process = checkout.start("out")
    log = checkout.folder / "out" / "logs" / "cuda.log"
    until = time.monotonic() + 60
    while not (log.exists() and log.read_text()) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(which)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    stages = checkout.stages()
    assert stages["smoke"] == "passed" and stages["cuda"] == "interrupted"
    assert "memcheck" not in stages
    assert "| cuda | correctness | interrupted |" in checkout.archived()["summary.md"]


@pytest.mark.exhaustive
def test_the_budget_ends_the_run_whose_archive_may_lie_elsewhere(checkout):
    archive = checkout.folder / "kept.tar.gz"
    (checkout.programs / "nvidia-smi").unlink()  # torch knows the GPU too
    assert checkout.run("out", BUDGET="5", ARCHIVE=str(archive))[0] == 1
    assert tarfile.is_tarfile(archive)
    stages = checkout.stages()
    assert stages["build"] == "left out: fusedops/lib has code for sm_90"
    assert {status for status in stages.values() if "left out" not in status} == {"not reached"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--bogus"], 2, "wanted [--dry-run] [FOLDER]"),
        (["a", "b"], 2, "wanted [--dry-run] [FOLDER]"),
        (["out"], 1, "neither nvidia-smi nor torch finds a GPU"),
    ],
)
def test_a_bad_command_line_and_a_machine_without_a_gpu_are_refused(
    checkout, arguments, code, message
):
    write_program(checkout.programs / "nvidia-smi", "exit 9")
    ended, output = checkout.run(*arguments)
    assert ended == code and message in output
