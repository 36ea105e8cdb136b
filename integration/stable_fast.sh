#!/bin/sh
# Builds stable-fast (its Python package is sfast) against a torch of its time, without CUDA, and runs a compiled UNet
# through the cache. The environment, some gigabytes, is kept in $OVERMIND_VENVS and used again.
set -eu

cd "$(dirname "$0")/.."
venv=${OVERMIND_VENVS:-$HOME/.cache/overmind-fs/venvs}/stable-fast
torch=2.9.1
python=$venv/bin/python

if [ ! -e "$venv/.complete" ]; then
    uv venv -q --clear --python 3.11 "$venv"
    # Newer setuptools have no pkg_resources, which the build of extensions for this torch imports.
    uv pip install -q --python "$python" "torch==$torch" 'setuptools<81' wheel ninja numpy packaging diffusers==0.42.1
    # Its source package asks for CUDA unless it is told not to. A compiler process takes more than a gigabyte.
    WITH_CUDA=0 MAX_JOBS="${MAX_JOBS:-1}" PATH="$venv/bin:$PATH" uv pip install -q --python "$python" --no-deps \
        --no-build-isolation --no-binary stable-fast stable-fast==1.0.5
    touch "$venv/.complete"
fi
uv pip install -q --python "$python" --reinstall-package overmind-cext --reinstall-package overmind-fs ./cext ./pyloader
"$python" -m integration.stable_fast
