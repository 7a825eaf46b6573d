"""`python -m fusedops env` always reports, and says how to fix what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from processes import run_python

import fusedops
from fusedops.cli import env, main, problems
from fusedops.ops.registration import libraries


def test_json_report_holds_every_section_and_the_variables_in_force():
    fewest = libraries.build_info()["cpu_isas"][0]
    done = run_python("-m", "fusedops", "env", "--json", FUSEDOPS_CPU_ISA=fewest)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report.keys() == {*env.PROBES, "problems"}
    assert report["variables"]["FUSEDOPS_CPU_ISA"] == fewest
    assert report["system"]["instructions used by fusedops"] == fewest
    assert report["torch"]["version"] == torch.__version__


def test_text_report_has_a_summary_the_problems_and_a_paragraph_for_each_section(
    capsys, monkeypatch
):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert main(["env"]) == 0
    paragraphs = capsys.readouterr().out.split("\n\n")
    summary, *titles = (paragraph.splitlines()[0] for paragraph in paragraphs)
    assert summary.startswith(f"fusedops {fusedops.__version__}, torch {torch.__version__}, Python")
    assert f"  CPU      {libraries.cpu_isa()}, 1 thread, " in paragraphs[0]
    assert titles == ["problems", *env.PROBES]


@pytest.mark.parametrize("options", [[], ["--verbose"]])
def test_operators_are_listed_if_that_is_asked_for(options, capsys):
    main(["env", *options])
    assert ("\n  softmax_backward " in capsys.readouterr().out) == bool(options)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm"])
def test_every_operator_and_its_backward_runs_on_the_cpu_and_under_fake_tensors(name):
    operators = env.probe_operators()
    assert {"CPU", "Meta", "Autograd"} <= {*operators[name]}
    assert {"CPU", "Meta"} <= {*operators[f"{name}_backward"]}


def test_the_installed_package_has_no_problem_of_its_own():
    report = env.collect()
    what = [problem["what"] for problem in report["problems"]]
    assert not [text for text in what if "GPU" not in text and "CUDA" not in text]


def test_a_system_that_does_not_tell_its_processor_is_described(monkeypatch):
    cpuinfo = "processor\t: 0\nFeatures\t: fp asimd\n"  # of ARM
    monkeypatch.setattr(Path, "read_text", lambda path: cpuinfo)
    assert env._processor_name() and env._vector_flags() == []


def test_a_gpu_is_described_with_the_code_that_the_libraries_have_for_it(monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 580.1\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    gpu = {"is_available": True, "device_count": 1}
    gpu |= {"get_device_capability": (9, 0), "get_device_name": "H200"}
    for name, answer in gpu.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(env, "probe_build", lambda: {"cuda": {"architectures": ["90-real"]}})
    described = {"name": "H200", "capability": "9.0", "code": ["90-real"]}
    described["launches"] = f"none: {libraries.cuda_status()}"
    assert env.probe_devices() == {"cuda:0": described, "driver": "580.1"}
    report = HEALTHY | {"devices": env.probe_devices(), "problems": []}
    assert "cuda:0 code        90-real" in env.as_text(report)
    monkeypatch.setattr(env, "probe_build", lambda: {"cuda": {"architectures": ["80-real"]}})
    without_code = env.probe_devices()["cuda:0"]
    assert without_code["code"] is None and without_code["launches"] is None


def test_a_failing_probe_shows_its_error_in_place_of_its_facts(monkeypatch):
    def fail():
        raise OSError("no such device")

    monkeypatch.setitem(env.PROBES, "devices", fail)
    report = env.collect()
    assert report["devices"] == {"error": "OSError: no such device"}
    assert "no such device" in env.as_text(report)


def test_missing_facts_do_not_stop_the_report():
    failed = {name: {"error": "OSError: broken"} for name in env.PROBES}
    whats = [problem.what for problem in problems.find_problems(failed)]
    assert whats[0] == "the operators do not load: OSError: broken"


HEALTHY = {
    "package": {"imports": True},
    "build": {"torch_target": "0x020a000000000000", "cuda": {"built": True}},
    "torch": {"version": "2.13.0"},
    "system": {"instructions used by fusedops": "avx2"},
    "settings": {"fuse": "always"},
    "policy": {"cpu, 1 thread": {"table": "cpu-amd"}, "measured by you": {"damaged": []}},
    "devices": {"driver": None},
    "libraries": {"loaded": []},
    "operators": {"softmax": ["CPU", "CUDA", "Meta"]},
    "compile": {"backend entry point": "fusedops.backend:backend", "C++ compiler": "/usr/bin/g++"},
}
OLD_GPU = {"cuda:0": {"name": "V100", "capability": "7.0", "code": None}}


@pytest.mark.parametrize(
    ("section", "facts", "fix"),
    [
        ("operators", {"error": "ImportError: no library"}, "pip install"),
        ("package", {"imports": {"error": "SyntaxError: nn.py"}}, "pip install"),
        ("operators", {"softmax": ["Meta"]}, "pip install"),
        ("system", {"instructions used by fusedops": {"error": "bad"}}, "unset FUSEDOPS_CPU_ISA"),
        ("settings", {"error": "ValueError: fuse is 'maybe'"}, "unset"),
        (
            "policy",
            {"cpu": {"error": "ValueError: cpu.csv"}, "measured by you": {"damaged": []}},
            "pip install",
        ),
        ("policy", {"measured by you": {"damaged": ["my.csv is damaged"]}}, "fusedops tune"),
        ("torch", {"version": "2.9.1+cu128"}, "pip install 'torch>=2.10'"),
        ("devices", OLD_GPU, "TORCH_CUDA_ARCH_LIST=7.0"),
        ("devices", {"driver": "580.1"}, "CUDA build of torch"),
        ("compile", {"backend entry point": None, "C++ compiler": "g++"}, "pip install"),
        ("compile", {"backend entry point": "x:y", "C++ compiler": None}, "install g++"),
        (
            "compile",
            {"backend entry point": "x:y", "C++ compiler": "g++", "switched off": True},
            "unset it",
        ),
    ],
)
def test_each_problem_comes_with_its_fix(section, facts, fix):
    assert problems.find_problems(HEALTHY) == []
    (problem,) = problems.find_problems(HEALTHY | {section: facts})
    assert fix in problem.fix


def test_a_gpu_without_cuda_kernels_says_why_and_how_to_build_them():
    build = {"build": {"cuda": {"built": False}}, "libraries": {"cuda": "nvcc was not found"}}
    (problem,) = problems.find_problems(HEALTHY | build | {"devices": OLD_GPU})
    assert "nvcc was not found" in problem.what
    assert problem.fix.startswith("FUSEDOPS_BUILD_CUDA=1 ")


@pytest.mark.parametrize(
    ("capability", "architecture", "runs"),
    [
        ((9, 0), "90-real", True),
        ((8, 6), "80-real", True),  # machine code runs on later minor versions
        ((8, 0), "86-real", False),
        ((9, 0), "80-real", False),  # and on no other major version
        ((9, 0), "80-virtual", True),  # where PTX does
        ((12, 1), "120", True),
        ((8, 0), "90", False),
        ((9, 0), "90a-real", True),
        ((10, 0), "90a", False),
        ((10, 3), "100f-real", True),
    ],
)
def test_code_runs_where_nvidia_says_it_does(capability, architecture, runs):
    assert env.code_for(capability, [architecture]) == ([architecture] if runs else [])
