#!/usr/bin/env bash
# Tests, measures and sanitizes fusedops on a machine with an NVIDIA GPU: one command, ten minutes.
# It needs Python, torch and pytest, and no network; it installs nothing. It needs nvcc, cmake and
# ninja if fusedops/lib or build/tune/tune was not built for the GPU before.
#
#   tools/gpu_check.sh [--dry-run] [FOLDER]      default: docs/results/<device>-<date>
#   PYTHON=python3.12  BUDGET=540                which Python; seconds in total
#   ARCHIVE=FILE       COMMIT=NAME               default: FOLDER.tar.gz; what git says
#
# The most informative stages come first, as a run may be interrupted: whether every kernel runs and
# is right once, how fast each kernel is, alone and beside eager and Inductor, whether all results
# are right, what the sanitizers say, and why a kernel is as fast as it is. Each stage has a time
# limit and a log; a stage that fails or hangs does not stop the rest. Failures of tests are in
# failures.txt as they happen. After each stage summary.md, summary.json and ARCHIVE hold all that
# was reached, so that an interrupted run is kept. A folder that exists is never written to: the
# next free name is taken. The exit code is 1 if a correctness stage did not pass. --dry-run prints
# the stages, tries each as far as it goes without a GPU (gpu_rehearsal.py, a minute), and exits
# with 1 if one could not start. The limits of all stages before bench-models fit into BUDGET
# together, if nothing has to be built.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

DRY=no
if [[ ${1:-} == --dry-run ]]; then
  DRY=yes
  shift
fi
if [[ ${1:-} == -* || $# -gt 1 ]]; then
  echo "gpu_check: got '$*', wanted [--dry-run] [FOLDER]" >&2
  exit 2
fi
if [[ -z ${PYTHON:-} ]]; then
  PYTHON=python3
  [[ -x .venv/bin/python ]] && PYTHON=.venv/bin/python
fi
BUDGET=${BUDGET:-540}
export PATH=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH:/usr/local/cuda/bin
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

has() { "$PYTHON" -c "import $1" 2>/dev/null; }
finds() { command -v "$1" >/dev/null; }
# Prints a property of the first GPU, from torch if there is no nvidia-smi.
gpu() {
  if finds nvidia-smi; then
    nvidia-smi --id=0 --format=csv,noheader --query-gpu="$1"
  else
    "$PYTHON" -c "import torch; gpu = torch.cuda.get_device_properties(0); print(
      {'name': gpu.name, 'compute_cap': f'{gpu.major}.{gpu.minor}'}.get('$1', 'unknown'))"
  fi
}
if [[ $DRY == yes ]]; then
  DEVICE=DEVICE
elif ! DEVICE=$(gpu name); then
  echo "gpu_check: neither nvidia-smi nor torch finds a GPU" >&2
  exit 1
fi

# --- results ------------------------------------------------------------------------------------

# Prints the first of FOLDER, FOLDER-2, ... of which neither the folder nor a .tar.gz exists.
free_folder() {
  local folder=$1 i=2
  while [[ -e $folder || -e $folder.tar.gz ]]; do
    folder=$1-$i
    ((i++))
  done
  echo "$folder"
}

versions() {
  printf '%s\t%s\n' \
    date "$(date --utc +%FT%TZ)" \
    device "$DEVICE" \
    capability "$(gpu compute_cap)" \
    driver "$(gpu driver_version)" \
    nvcc "$(finds nvcc && nvcc --version | sed -n 's/.*release.*, V//p' || echo none)" \
    python "$("$PYTHON" -c 'import platform; print(platform.python_version())')" \
    torch "$("$PYTHON" -c 'import torch; print(torch.__version__)')" \
    commit "${COMMIT:-$(git describe --always --dirty 2>/dev/null || echo unknown)}"
}

# Writes the summary and the archive, which is renamed into place, so that it is always complete.
keep() {
  "$PYTHON" tools/gpu_summary.py "$OUT"
  tar -C "$(dirname "$OUT")" -czf "$ARCHIVE.part" "$(basename "$OUT")" && mv "$ARCHIVE.part" "$ARCHIVE"
}

record() { printf '%s\t%s\t%s\t%d\n' "$1" "$2" "$3" "$4" >>"$OUT/stages.tsv"; }

# --- stages -------------------------------------------------------------------------------------

correct=yes
running=
# What only a dry run has: the seconds of all stages, and their lines for gpu_rehearsal.py.
planned=0 builds=0 commands=()

# Runs a command for up to SECONDS, or for what is left of BUDGET, and records how it ended:
# stage NAME correctness|speed SECONDS COMMAND...
stage() {
  local name=$1 kind=$2 limit=$3 start=$SECONDS left=$((BUDGET - SECONDS)) status="not reached"
  shift 3
  if [[ $DRY == yes ]]; then
    local shown=${*//$PWD\//}
    printf '%-36s %-12s %4s s  %s\n' "$name" "$kind" "$limit" "${shown//$OUT/FOLDER}"
    commands+=("$name"$'\t'"${*@Q}")
    if [[ $name == *build ]]; then ((builds += limit)); else ((planned += limit)); fi
    return
  fi
  current=("$name" "$kind" "$start")
  if ((left > 5)); then
    ((limit > left)) && limit=$left
    # The command runs in the background, so that a signal also interrupts the wait.
    timeout --kill-after=10 "$limit" "$@" >"$OUT/logs/$name.log" 2>&1 &
    running=$!
    wait "$running"
    case $? in
      0) status=passed ;;
      124 | 137) status="over $limit s" ;;
      *) status=failed ;;
    esac
    running=
  fi
  current=()
  [[ $kind == correctness && $status != passed ]] && correct=no
  record "$name" "$kind" "$status" $((SECONDS - start))
  printf '%-36s %-12s %4d s\n' "$name" "$status" $((SECONDS - start))
  keep
}

# Records a stage that is left out: skipped NAME KIND WHY
skipped() {
  if [[ $DRY == yes ]]; then
    printf '%-36s %-12s         left out: %s\n' "$1" "$2" "$3"
    return
  fi
  record "$1" "$2" "left out: $3" 0
  printf '%-36s left out: %s\n' "$1" "$3"
}

current=()
build=
# Ends what is running, keeps the results, and exits.
interrupted() {
  trap '' INT TERM
  [[ -n $running ]] && kill -TERM "$running" 2>/dev/null
  [[ -n $build ]] && kill -TERM -- "-$build" 2>/dev/null
  if ((${#current[@]})); then
    record "${current[0]}" "${current[1]}" interrupted $((SECONDS - current[2]))
  fi
  keep
  echo "interrupted; results: $OUT"
  exit 130
}

if [[ $DRY == no ]]; then
  OUT=$(free_folder "${1:-docs/results/$(tr 'A-Z ' 'a-z-' <<<"$DEVICE")-$(date +%F)}")
  ARCHIVE=${ARCHIVE:-$OUT.tar.gz}
  mkdir -p "$OUT/logs" "$OUT/bench"
  : >"$OUT/stages.tsv"
  versions >"$OUT/versions.tsv"
  trap interrupted INT TERM
  keep
else
  OUT=$(mktemp -d)
  trap 'rm -rf "$OUT"' EXIT
fi

# --- what is built ------------------------------------------------------------------------------

CAPABILITY=$([[ $DRY == yes ]] && echo 9.0 || gpu compute_cap)
ARCH=${CAPABILITY//./}
# Whether fusedops/lib has code for this GPU, by cuobjdump; without cuobjdump, whether it is there.
has_library() {
  [[ -f fusedops/lib/libfusedops_kernels_cuda.so ]] || return 1
  finds cuobjdump || return 0
  [[ $(cuobjdump --list-elf fusedops/lib/libfusedops_kernels_cuda.so) == *"sm_$ARCH"* ]]
}
LIBRARY=(env FUSEDOPS_BUILD_CUDA=1 FUSEDOPS_BUILD_NATIVE=1 TORCH_CUDA_ARCH_LIST="$CAPABILITY"
  "$PYTHON" setup.py build_ext --inplace)
TUNE=build/tune/tune
TUNE_BUILD=(bash -c "cmake -S tools/tune -B build/tune -G Ninja -DCMAKE_CUDA_ARCHITECTURES=$ARCH && \
  cmake --build build/tune")

# The library is built in the background, while tune is built and runs every kernel.
start_build() {
  # shellcheck disable=SC2016
  setsid bash -c 'out=$1; shift; "$@"; echo $? >"$out/build.status"' - "$OUT" "${LIBRARY[@]}" \
    >"$OUT/logs/background-build.log" 2>&1 &
  build=$!
}
AWAIT_BUILD=(bash -c 'tail --pid="$1" -f /dev/null; exit "$(cat "$2/build.status")"' -)

PREBUILT=no
has_library && PREBUILT=yes
[[ $DRY == no && $PREBUILT == no ]] && start_build

# --- the ten minutes ----------------------------------------------------------------------------

if [[ -x $TUNE && $DRY == no ]]; then
  skipped tune-build correctness "$TUNE is there"
else
  stage tune-build correctness 150 "${TUNE_BUILD[@]}"
fi
stage smoke correctness 25 "$TUNE" --smoke --csv "$OUT/smoke.csv"

if [[ $PREBUILT == yes ]]; then
  skipped build correctness "fusedops/lib has code for sm_$ARCH"
elif [[ $DRY == yes ]]; then
  stage build correctness 240 "${LIBRARY[@]}"
else
  stage build correctness 240 "${AWAIT_BUILD[@]}" "$build" "$OUT"
fi
# torch.compile(backend="fusedops") finds the backend by its entry point, which needs an egg-info.
stage entry-point correctness 10 "$PYTHON" setup.py -q egg_info
stage env correctness 20 "$PYTHON" -m fusedops env

# The tests that need a GPU. Those that run every kernel once come first.
DECISIVE=(tests/cuda/test_cuda_{every_kernel,cross_entropy_kernels,long_rows,library,c_api,streams}.py)
CUDA_TESTS=(tests/cuda/test_cuda_{values,gradients,softmax_family,norm_family,losses,parallel_stack}.py
  tests/cuda/test_cuda_{determinism,layout,opcheck,compile,large}.py)
if [[ $DRY == yes ]] || has expecttest; then
  CUDA_TESTS+=(tests/cuda/test_cuda_opinfo.py)
fi
PARALLEL=("$PYTHON" -m pytest -q -p no:cacheprovider --tb=short --failures "$OUT/failures.txt")
has xdist && PARALLEL+=(-n $(($(nproc) * 3 / 4 + 1)) --dist load --maxschedchunk 4)
stage cuda-decisive correctness 60 "${PARALLEL[@]}" "${DECISIVE[@]}"

stage tune speed 110 "$TUNE" --seconds 100 --csv "$OUT/tune.csv"
stage policy speed 10 bash -c "'$PYTHON' tools/pick_policy.py '$OUT/tune.csv' >'$OUT/policy.diff'"

# Runs `python -m fusedops bench` as a stage: bench NAME SECONDS ARGUMENTS...
bench() {
  local name=$1 limit=$2
  shift 2
  stage "bench-$name" speed "$limit" "$PYTHON" -m fusedops bench --device cuda --quick "$@" \
    --csv "$OUT/bench/$name.csv" --plot "$OUT/bench"
}
bench peers 75 --op softmax layer_norm rms_norm --dtype bfloat16
bench losses 30 --op cross_entropy --dtype bfloat16
stage cuda correctness 90 "${PARALLEL[@]}" "${CUDA_TESTS[@]}"

# The sanitizers run the kernels without torch, each array in an allocation of its own.
for tool in memcheck racecheck; do
  stage "$tool" correctness 30 compute-sanitizer --tool "$tool" --kernel-name kns=fusedops \
    --report-api-errors no --error-exitcode 99 "$TUNE" --smoke --seconds 20 --csv "$OUT/$tool.csv"
done

# The kernels in which most models spend their time, and a cluster. Each run ends with the launch
# that it profiles.
PROFILED=(norm_forward_registers softmax_forward_registers norm_backward_registers
  norm_forward_cluster)
NCU=(ncu --launch-skip 2 --launch-count 1 --kill yes)
for section in SpeedOfLight MemoryWorkloadAnalysis SchedulerStats WarpStateStats Occupancy; do
  NCU+=(--section "$section")
done
if [[ $DRY == yes ]] || finds ncu; then
  for kernel in "${PROFILED[@]}"; do
    stage "ncu-$kernel" speed 12 "${NCU[@]}" --kernel-name "$kernel" \
      "$TUNE" --seconds 10 --csv "$OUT/logs/ncu-$kernel.csv"
  done
else
  skipped ncu speed "ncu is not on PATH"
fi

if [[ $DRY == yes ]]; then
  echo "before the other benches: $planned s of $BUDGET s, and $builds s more for what was not built before"
fi
stage bench-models speed 150 "$PYTHON" -m tools.bench models gpt2 bert llama vit --device cuda \
  --dtype bfloat16 --batch 8 --length 1024 --csv "$OUT/bench-models.csv"
stage policy-table speed 150 "$PYTHON" -m fusedops tune --device cuda --budget 140 --output "$OUT/policy-table.csv"
OPS=(softmax layer_norm masked_softmax rms_norm log_softmax softmax_dropout std_norm add_layer_norm
  add_rms_norm)
for direction in forward backward; do
  for op in "${OPS[@]}"; do
    bench "$op-$direction" 60 --op "$op" --pass "$direction" --dtype bfloat16 float32
  done
done
stage bench-memory speed 60 "$PYTHON" -m tools.bench memory --device cuda \
  --csv "$OUT/memory.csv"

# The tests of the emulator and the disassembler give the same results without a GPU.
SUITE=(tests --ignore=tests/cuda --ignore=tests/simt
  --ignore=tests/tools/test_sass.py --ignore=tests/tools/test_gpu_tune.py)
# PyTorch's own samples of its ops need expecttest, and so do the tests that print graphs.
if ! has expecttest; then
  mapfile -t files < <(grep -rlE 'expecttest|testing\._internal' --include='test_*.py' tests)
  SUITE+=("${files[@]/#/--ignore=}")
fi
stage suite correctness 90 "${PARALLEL[@]}" "${SUITE[@]}"

if [[ $DRY == yes ]]; then
  printf '%s\n' "${commands[@]}" | "$PYTHON" tools/gpu_rehearsal.py
  exit
fi
compgen -G "$OUT/bench/*.csv" >/dev/null &&
  awk 'FNR > 1 || NR == 1' "$OUT"/bench/*.csv >"$OUT/bench.csv"
[[ -n $build ]] && kill -TERM -- "-$build" 2>/dev/null
keep
echo "results: $OUT and $ARCHIVE"
[[ $correct == yes ]]
