#!/bin/sh
# Regenerates the accessors of manifest.fbs: Go into schema/manifest, Python into pyloader/overmind/manifest/generated.
#
#   generate.sh          both
#   generate.sh go       one of them ("go" or "python")
#   generate.sh check    regenerates into a temporary folder and fails when it differs from what is committed
#
# FLATC overrides which flatc is run; it has to be the version of the FlatBuffers runtime in go.mod (25.12.19).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
python_out=$root/pyloader/overmind/manifest/generated

if [ -z "${FLATC:-}" ]; then
	if [ -x "$root/.venv/bin/flatc" ]; then FLATC=$root/.venv/bin/flatc; else FLATC=flatc; fi
fi

# $1: folder that gets the package folder manifest/
generate_go() {
	"$FLATC" --go -o "$1" "$here/manifest.fbs"
	gofmt -w "$1"/manifest/*.go
}

# $1: folder that gets manifest_generated.py and .pyi
generate_python() {
	mkdir -p "$1"
	"$FLATC" --python --gen-onefile --python-typing -o "$1" "$here/manifest.fbs"
}

check() {
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	generate_go "$tmp/go"
	diff -ru "$here/manifest" "$tmp/go/manifest"
	if [ -d "$python_out" ]; then
		generate_python "$tmp/python"
		for f in manifest_generated.py manifest_generated.pyi; do
			diff -u "$python_out/$f" "$tmp/python/$f"
		done
	fi
}

case "${1:-all}" in
go) generate_go "$here" ;;
python) generate_python "$python_out" ;;
check) check ;;
all)
	generate_go "$here"
	generate_python "$python_out"
	;;
*)
	echo "usage: $0 [go|python|check]" >&2
	exit 2
	;;
esac
