"""The modules of examples/train_translation.py and examples/compare_translation.py."""

import importlib
import importlib.util
import sys

for _package in ("torch", "fusedops", "matplotlib", "rich", "sacrebleu", "sentencepiece"):
    if importlib.util.find_spec(_package) is None:
        sys.exit(
            f"the translation tools need the package {_package!r}, which is not installed; "
            "run: pip install --no-build-isolation -e '.[translation]'"
        )

try:
    importlib.import_module("fusedops")
except (ImportError, ValueError) as error:  # a library that does not load, or an invalid setting
    sys.exit(f"the translation tools cannot run: {error}; see `python -m fusedops env`")

Pair = tuple[str, str]  # a source sentence and its target
