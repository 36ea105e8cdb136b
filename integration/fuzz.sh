#!/usr/bin/env bash
# Every fuzzer for $FUZZTIME (20s), $FUZZ_JOBS (2) of them at a time: the targets of Go, the C++ helper, the Python readers.
set -euo pipefail
cd "$(dirname "$0")/.."
export FUZZTIME=${FUZZTIME:-20s}

# The fuzzer of Go may take the end of its time for a failure; a real one leaves its input.
go_target() {
    local out
    out=$(go test "$1" -run '^$' -fuzz "^$2\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 5s -parallel 1 2>&1) && status=0 || status=$?
    if [ $status -ne 0 ] && { grep -Eq 'Failing input written|panic|\[build failed\]' <<<"$out" ||
        ! grep -q 'context deadline exceeded' <<<"$out"; }; then
        echo "$out" >&2
        return 1
    fi
    echo "$1 $2: $(grep -E '^fuzz: elapsed' <<<"$out" | tail -1)"
}

one() {
    case $1 in
    cext) cext/fuzz/run.sh ;;
    python) (cd pyloader && "../$PYTHON" -m pytest -q -p no:cacheprovider tests/test_fuzz.py) ;;
    *) go_target "${1%:*}" "${1#*:}" ;;
    esac
}

if [ $# -gt 0 ]; then
    one "$1"
    exit
fi
{
    grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' cmd fs schema | sed -E 's|^|./|; s|/[^/]*_test.go:func |:|'
    echo cext
    echo python
} | xargs -P "${FUZZ_JOBS:-2}" -n 1 "$0"
