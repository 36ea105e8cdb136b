#!/bin/sh
# Builds the helper with the address and undefined-behaviour sanitizers and runs the tests that need no torch.
# Fails on a failed test, on any report, and on a leak whose stack goes through the helper (CPython has leaks of its own
# at exit). PYTHON: an interpreter that has pytest and setuptools.
set -eu

cd "$(dirname "$0")"
python=${PYTHON:-python3}
python=$("$python" -c 'import sys; print(sys.executable)')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

flags="-g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
CFLAGS="$flags" CXXFLAGS="$flags" LDFLAGS="-fsanitize=address,undefined" \
    "$python" setup.py -q build --build-base "$work/build" --build-lib "$work/lib" egg_info --egg-base "$work" 2>"$work/log" || {
    cat "$work/log" >&2
    exit 1
}

# setuptools decides which of the flags it takes.
for sanitizer in __asan_report __ubsan_handle; do
    grep -q "$sanitizer" "$work"/lib/overmind_cext/_helper*.so || {
        echo "sanitize: built without $sanitizer" >&2
        exit 1
    }
done

mkdir "$work/reports"
export LD_PRELOAD="$(${CC:-gcc} -print-file-name=libasan.so) $(${CC:-gcc} -print-file-name=libubsan.so)"
export PYTHONMALLOC=malloc
export PYTHONPATH="$work/lib"
export ASAN_OPTIONS="detect_leaks=1:fast_unwind_on_malloc=0:malloc_context_size=12:allocator_may_return_null=1:log_path=$work/reports/asan"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:log_path=$work/reports/ubsan"
export LSAN_OPTIONS="exitcode=0:report_objects=0"

status=0
(cd tests && "$python" -m pytest -q -p no:cacheprovider --ignore test_torch.py "$@") || status=$?

for report in "$work"/reports/*; do
    [ -e "$report" ] || continue
    # Leak reports are cut into one paragraph a leak; only those of the helper count.
    if grep -q 'ERROR: LeakSanitizer' "$report" && ! grep -Eq 'ERROR: AddressSanitizer|runtime error:' "$report"; then
        awk 'BEGIN { RS = ""; ORS = "\n\n" } /helper[.](abi3|cpp)/ { print; found = 1 } END { exit !found }' "$report" || continue
    else
        cat "$report"
    fi
    status=1
done
if [ "$status" -eq 0 ]; then
    echo "sanitize: no report"
else
    echo "sanitize: FAILED" >&2
fi
exit "$status"
