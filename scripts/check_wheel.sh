#!/usr/bin/env bash
# Builds the wheel, installs it into an empty environment, and runs the command line from there, away from the source.
set -euo pipefail
python="${PYTHON:-python3}"
root="$(cd "$(dirname "$0")/.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH

"$python" -m venv "$work/env"
bin="$work/env/bin"
quiet=(--quiet --disable-pip-version-check)
"$python" -m pip wheel "${quiet[@]}" --no-deps --wheel-dir "$work/wheel" "$root"
"$bin/python" -m pip install "${quiet[@]}" -c "$root/constraints.txt" "$work"/wheel/isles-*.whl

cd "$work"
"$bin/isles" --version
"$bin/python" -m isles data list
# MNIST's first rows are inside the package; a run needs neither scikit-learn nor matplotlib
settings=(--train 50 --sampler mcmc --particles 2 --burn-in 2 --leapfrogs 1)
"$bin/isles" run mnist --model logistic --folder run "${settings[@]}" >run.txt 2>&1 || { cat run.txt; exit 1; }
"$bin/isles" status run
echo "the wheel works: $(ls wheel), $(du -h wheel/*.whl | cut -f1)"
