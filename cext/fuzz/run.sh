#!/bin/sh
# Fuzzes the parts of the helper that need no Python, under the address and undefined-behaviour sanitizers: with libFuzzer
# where clang++ has it, otherwise with driver.cpp and g++. FUZZTIME: how long for all, such as 20s or 5m.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
time=${FUZZTIME:-20s}
case $time in
*h) seconds=$((${time%h} * 3600)) ;;
*m) seconds=$((${time%m} * 60)) ;;
*) seconds=${time%s} ;;
esac
flags="-std=c++17 -O1 -g -Wall -Wextra -Werror -fno-omit-frame-pointer -fno-sanitize-recover=all -pthread"

targets="arena names tables"
seconds=$(((seconds + 2) / 3))

echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char *, unsigned long) { return 0; }' >"$work/probe.cpp"
clang=
"${CLANGXX:-clang++}" -fsanitize=fuzzer,address,undefined "$work/probe.cpp" -o "$work/probe" 2>/dev/null && clang=yes
for target in $targets; do
    if [ "$clang" ]; then
        "${CLANGXX:-clang++}" $flags -fsanitize=fuzzer,address,undefined "$here/fuzz_$target.cpp" -o "$work/fuzz"
    else
        "${CXX:-g++}" $flags -fsanitize=address,undefined "$here/fuzz_$target.cpp" "$here/driver.cpp" -o "$work/fuzz"
    fi
    rm -rf "$work/found" "$work/corpus"
    mkdir "$work/found"
    cp -r "$here/corpus/$target" "$work/corpus"
    cd "$work/found"
    if ! "$work/fuzz" "-max_total_time=$seconds" "$work/corpus" >"$work/log" 2>&1; then
        cat "$work/log" >&2
        for input in "$work"/found/*; do
            [ -e "$input" ] && cp "$input" "$here/" && echo "fuzz: kept in $here/$(basename "$input")" >&2
        done
        exit 1
    fi
    echo "$target: $(tail -n 1 "$work/log")"
done
