#!/usr/bin/env bash
# A session on a GPU: one command, unattended, at most ten minutes once all is installed.
#
#     benchmarks/gpu_session.sh [--install] [--out DIR] [--minutes N]
#
# Needs this package with its test extra, and vLLM (docs/engines.md); --install installs them with pip into the Python
# that `python` is, nothing is installed otherwise. Nothing is downloaded from a hub: weights are random. Without a GPU
# it runs at small shapes. What is measured is told by benchmarks/gpu_session.py.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == --install ]]; then
    shift
    if command -v nvidia-smi >/dev/null; then python -m pip install -e ".[test,vllm]"; else python -m pip install -e ".[test]"; fi
fi
if ! python -c "import clawrl_trl, psutil" 2>/dev/null; then
    echo "The package is not installed: run benchmarks/gpu_session.sh --install, or pip install -e '.[test]' first." >&2
    exit 2
fi
if command -v nvidia-smi >/dev/null && ! python -c "import vllm" 2>/dev/null; then
    echo "vLLM is not installed: the part 'engine and trainer' will fail. --install installs it." >&2
fi
# One card, however many there are.
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
# A long pass after a short one must not fail for fragments.
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True TOKENIZERS_PARALLELISM=false
exec python benchmarks/gpu_session.py "$@"
