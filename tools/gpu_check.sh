#!/usr/bin/env bash
# Builds, tests, sanitizes and times fusedops on a machine with an NVIDIA GPU: one command. Needs
# Python, torch, pytest, nvcc, cmake and ninja, and no network; installs nothing.
#
#   tools/gpu_check.sh [FOLDER]      default: docs/results/<device>-<date>
#   PYTHON=python3.12  BUDGET=540    which Python; seconds in total
#
# Every stage has a time limit and a log, and a failed one does not stop the rest. summary.md and
# summary.json are written after each stage, so that results are kept if the run is interrupted. The
# most important stages come first: loading, correctness, speed. Afterwards the libraries in
# fusedops/lib are built for this GPU only. The exit code is 1 if a correctness stage did not pass.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -z ${PYTHON:-} ]]; then
  PYTHON=python3
  [[ -x .venv/bin/python ]] && PYTHON=.venv/bin/python
fi
BUDGET=${BUDGET:-540}
export PATH=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH:/usr/local/cuda/bin
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

gpu() { nvidia-smi --id=0 --format=csv,noheader --query-gpu="$1"; }
if ! DEVICE=$(gpu name); then
  echo "gpu_check: nvidia-smi finds no GPU" >&2
  exit 1
fi
OUT=${1:-docs/results/$(tr 'A-Z ' 'a-z-' <<<"$DEVICE")-$(date +%F)}
mkdir -p "$OUT/logs" "$OUT/bench"
: >"$OUT/stages.tsv"
correct=yes

versions() {
  printf '%s\t%s\n' \
    date "$(date --utc +%FT%TZ)" \
    device "$DEVICE" \
    capability "$(gpu compute_cap)" \
    driver "$(gpu driver_version)" \
    nvcc "$(nvcc --version | sed -n 's/.*release.*, V//p')" \
    python "$("$PYTHON" -c 'import platform; print(platform.python_version())')" \
    torch "$("$PYTHON" -c 'import torch; print(torch.__version__)')" \
    commit "$(git describe --always --dirty 2>/dev/null || echo unknown)"
}

# stage NAME correctness|speed SECONDS COMMAND...
stage() {
  local name=$1 kind=$2 limit=$3 start=$SECONDS left=$((BUDGET - SECONDS)) status="not reached"
  shift 3
  if ((left > 5)); then
    ((limit > left)) && limit=$left
    timeout --kill-after=10 "$limit" "$@" >"$OUT/logs/$name.log" 2>&1
    case $? in
      0) status=passed ;;
      124 | 137) status="over $limit s" ;;
      *) status=failed ;;
    esac
  fi
  [[ $kind == correctness && $status != passed ]] && correct=no
  printf '%s\t%s\t%s\t%d\n' "$name" "$kind" "$status" $((SECONDS - start)) >>"$OUT/stages.tsv"
  printf '%-28s %-12s %4d s\n' "$name" "$status" $((SECONDS - start))
  "$PYTHON" tools/gpu_summary.py "$OUT"
}

versions >"$OUT/versions.tsv"
has() { "$PYTHON" -c "import $1" 2>/dev/null; }
PYTEST=("$PYTHON" -m pytest -q -p no:cacheprovider)
PARALLEL=("${PYTEST[@]}")
has xdist && PARALLEL+=(-n $(($(nproc) * 3 / 4)) --dist worksteal)
# The tests of the emulator and the disassembler give the same results without a GPU.
SUITE=(tests --ignore=tests/cuda --ignore=tests/simt --ignore=tests/tools/test_sass.py)
# PyTorch's own samples of its ops need expecttest, and so do the tests that print graphs.
if ! has expecttest; then
  mapfile -t files < <(grep -rlE 'expecttest|testing\._internal' --include='test_*.py' tests)
  SUITE+=("${files[@]/#/--ignore=}")
  printf 'no expecttest, left out\t%s\n' "${files[*]}" >>"$OUT/versions.tsv"
fi
SMALL=("${PYTEST[@]}" tests/cuda/test_cuda_every_kernel.py)
# Without PyTorch's cache every tensor is a separate allocation, so that accesses beyond it are found.
SANITIZER=(env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --kernel-name kns=fusedops
  --report-api-errors no --error-exitcode 99)

stage build correctness 150 \
  env FUSEDOPS_BUILD_CUDA=1 TORCH_CUDA_ARCH_LIST="$(gpu compute_cap)" \
  "$PYTHON" setup.py build_ext --inplace
# torch.compile(backend="fusedops") finds the backend by its entry point, which needs an egg-info.
stage entry-point correctness 30 "$PYTHON" setup.py -q egg_info
stage env correctness 60 "$PYTHON" -m fusedops env
stage library correctness 60 "${PYTEST[@]}" tests/cuda/test_cuda_{library,c_api}.py
stage numerics correctness 120 "${PARALLEL[@]}" tests/cuda/test_cuda_{values,gradients}.py
stage softmax-family correctness 120 "${PARALLEL[@]}" tests/cuda/test_cuda_softmax_family.py
stage norm-family correctness 120 "${PARALLEL[@]}" tests/cuda/test_cuda_norm_family.py
stage long-rows correctness 90 "${PARALLEL[@]}" tests/cuda/test_cuda_{long_rows,parallel_stack}.py
stage streams correctness 60 "${PYTEST[@]}" tests/cuda/test_cuda_streams.py
stage opcheck correctness 60 "${PARALLEL[@]}" tests/cuda/test_cuda_opcheck.py
has expecttest && stage opinfo correctness 60 "${PARALLEL[@]}" tests/cuda/test_cuda_opinfo.py
stage layout correctness 60 "${PARALLEL[@]}" tests/cuda/test_cuda_{layout,determinism}.py
stage compile correctness 90 "${PARALLEL[@]}" tests/cuda/test_cuda_compile.py
stage large correctness 40 "${PYTEST[@]}" tests/cuda/test_cuda_large.py
stage memcheck correctness 75 "${SANITIZER[@]}" --tool memcheck "${SMALL[@]}"
stage racecheck correctness 75 "${SANITIZER[@]}" --tool racecheck "${SMALL[@]}"
stage suite correctness 90 "${PARALLEL[@]}" "${SUITE[@]}"
OPS=(softmax layer_norm masked_softmax softmax_dropout log_softmax std_norm rms_norm add_layer_norm add_rms_norm)
for direction in forward backward; do
  for op in "${OPS[@]}"; do
    name=$op-$direction
    stage "bench-$name" speed 60 "$PYTHON" -m fusedops bench --device cuda --quick \
      --op "$op" --pass "$direction" --dtype bfloat16 float32 \
      --csv "$OUT/bench/$name.csv" --plot "$OUT/bench"
  done
done
stage bench-memory speed 60 "$PYTHON" -m fusedops bench --memory --device cuda \
  --csv "$OUT/memory.csv"
compgen -G "$OUT/bench/*.csv" >/dev/null &&
  awk 'FNR > 1 || NR == 1' "$OUT"/bench/*.csv >"$OUT/bench.csv"

echo "results: $OUT"
[[ $correct == yes ]]
