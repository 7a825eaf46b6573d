"""Drives the CMake build; all metadata is in pyproject.toml.

torch is not a build requirement: with build isolation pip would download gigabytes for headers that
the installed torch has. Install with `pip install --no-build-isolation .`
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent


# pip installs cmake and ninja next to the interpreter, in a folder that need not be on PATH.
ENVIRONMENT = os.environ | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
}


def run(*command: str) -> None:
    if subprocess.run(command, env=ENVIRONMENT).returncode != 0:
        sys.exit(f"fusedops: `{command[0]} {command[1]}` failed; its output is above")


def install(build: str, package: Path) -> None:
    """Installs the build into the package, each file atomically: there is never a partial file, and
    running processes keep their old library. Libraries that only an earlier build had are removed,
    as they would not fit the others. The installed files are stripped; debuggers and profilers find
    the symbols in the build folder."""
    package.mkdir(parents=True, exist_ok=True)
    earlier = set((package / "lib").glob("*.so"))
    with tempfile.TemporaryDirectory(dir=package, prefix=".installing-") as folder:
        run("cmake", "--install", build, "--strip", "--prefix", folder)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                target = package / path.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
                earlier.discard(target)
    for path in earlier:
        path.unlink()


class CMakeBuild(build_ext):
    """Configures, builds and installs the libraries into the package's lib/ folder."""

    def run(self) -> None:
        if importlib.util.find_spec("torch") is None:
            sys.exit(
                "fusedops builds against the installed torch, and this environment has none. Run:\n"
                "    pip install torch setuptools ninja cmake\n"
                "    pip install --no-build-isolation ."
            )
        in_place = self.inplace or getattr(self, "editable_mode", False)
        package = ROOT / "fusedops" if in_place else Path(self.build_lib).resolve() / "fusedops"
        # A cross build, for which CMake reads this variable, has a folder of its own.
        build = str(ROOT / "build" / Path(os.environ.get("CMAKE_TOOLCHAIN_FILE", "cmake")).stem)
        cuda = os.environ.get("FUSEDOPS_BUILD_CUDA", "auto")
        native = os.environ.get("FUSEDOPS_BUILD_NATIVE", "0")
        run(
            "cmake", "-S", str(ROOT), "-B", build, "-G", "Ninja",
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DFUSEDOPS_BUILD_CUDA={cuda}",
            f"-DFUSEDOPS_NATIVE={native}",
            "-DCMAKE_INSTALL_LIBDIR=lib",
        )  # fmt: skip
        run("cmake", "--build", build, "-j", os.environ.get("MAX_JOBS", str(os.cpu_count() or 1)))
        install(build, package)

    def get_outputs(self) -> list[str]:
        return []

    def copy_extensions_to_source(self) -> None:
        """CMake has installed into the source tree already."""


class StableWheel(bdist_wheel):
    """One wheel for every Python version: the libraries use no Python symbols, except op_call,
    which uses the limited API and is optional."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class EditableByPath(editable_wheel):
    """Makes an editable install a path in a .pth file, as with a src folder. By default setuptools
    installs a finder, which Python asks last: started in the folder that holds a clone, Python
    would import the clone itself, as a namespace package."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.package_dir = {"": "."}


setup(
    ext_modules=[Extension("fusedops.lib", [])],
    cmdclass={
        "build_ext": CMakeBuild,
        "bdist_wheel": StableWheel,
        "editable_wheel": EditableByPath,
    },
)
