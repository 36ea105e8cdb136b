#!/bin/sh
# Builds one wheel and runs the torch tests with that same file on the oldest, a middle and the newest supported pair of
# Python and torch. The environments (several GB) are kept in $OVERMIND_VENVS and used again.
set -eu

cd "$(dirname "$0")"
venvs=${OVERMIND_VENVS:-$HOME/.cache/overmind-fs/venvs}
# uv finds interpreters on PATH; those of pyenv that are not the current one are not there.
for bin in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin; do
    if [ -d "$bin" ]; then PATH="$PATH:$bin"; fi
done
export PATH

dist=$(mktemp -d)
trap 'rm -rf "$dist"' EXIT
uv build -q --wheel --out-dir "$dist" .
set -- "$dist"/*.whl
[ "$#" -eq 1 ]
wheel=$1
echo "wheel: $(basename "$wheel")"
case $wheel in
*-cp310-abi3-*) ;;
*) echo "not a cp310-abi3 wheel" >&2; exit 1 ;;
esac

failed=0
for pair in "3.10 2.4.1" "3.11 2.9.1" "3.13 2.15.0"; do
    version=${pair% *}
    torch=${pair#* }
    venv="$venvs/py$version-torch$torch"
    if [ ! -e "$venv/.complete" ]; then
        uv venv -q --clear --python "$version" "$venv"
        uv pip install -q --python "$venv/bin/python" "torch==$torch" pytest
        touch "$venv/.complete"
    fi
    # A torch that cannot be imported would skip the tests.
    "$venv/bin/python" -c "import torch; assert torch.__version__.split('+')[0] == '$torch', torch.__version__"
    uv pip install -q --python "$venv/bin/python" --no-deps --reinstall "$wheel"
    result=ok
    (cd tests && "$venv/bin/python" -m pytest -q -p no:cacheprovider test_torch.py test_map.py test_views.py test_modules.py test_process.py) || result=FAILED
    echo "Python $("$venv/bin/python" -c 'import platform; print(platform.python_version())'), torch $torch: $result"
    [ "$result" = ok ] || failed=1
done
exit "$failed"
