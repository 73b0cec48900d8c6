#!/usr/bin/env bash
# Makes .venv of this checkout and installs tests/requirements.txt and dspatch (editable) into it. Called by the Makefile.
# Safe to run twice and from two shells: a file lock lets one at a time work, and the last line marks it as done.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

requirements=tests/requirements.txt
python=.venv/bin/python
ready=.venv/.ready

fail() { echo "dspatch set-up: $*" >&2; exit 1; }

usable_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    fail "needs Python 3.10 to 3.13 with venv; none found (set PYTHON=/path/to/python to name one)"
}

compiler=${CXX:-c++}
command -v "${compiler%% *}" >/dev/null ||
    fail "needs a C++ compiler, since DeepSpeed compiles an operator at its first start; '$compiler' was not found"

mkdir -p .cache
if command -v flock >/dev/null; then
    exec 9>.cache/setup.lock
    flock 9
fi
if [[ $ready -nt $requirements && $ready -nt setup.cfg && $ready -nt pyproject.toml ]]; then exit 0; fi

chosen=$(usable_python)
echo "[setup] .venv with $("$chosen" --version)" >&2
[[ -x $python ]] && "$python" -m pip --version >/dev/null 2>&1 || { rm -rf .venv; "$chosen" -m venv .venv; }

pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }
echo "[setup] torch" >&2
pip install "$(grep '^torch==' "$requirements")"
echo "[setup] $requirements" >&2
pip install -r "$requirements"
echo "[setup] dspatch, editable" >&2
pip install --no-deps --no-build-isolation --editable .
touch "$ready"
