#!/bin/sh
# Regenerates the accessors of manifest.fbs and control.fbs: Go into schema/<name>, Python into
# pyloader/overmind/<name>/generated.
#
#   generate.sh          both languages
#   generate.sh go       one of them ("go" or "python")
#   generate.sh check    regenerates into a temporary folder and fails when it differs from what is committed
#
# FLATC overrides which flatc is run; it has to be the version of the FlatBuffers runtime in go.mod (25.12.19).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
loader=$root/pyloader/overmind
schemas="manifest control"

if [ -z "${FLATC:-}" ]; then
	if [ -x "$root/.venv/bin/flatc" ]; then FLATC=$root/.venv/bin/flatc; else FLATC=flatc; fi
fi

# $1: folder that gets a package folder for each schema
generate_go() {
	for name in $schemas; do
		"$FLATC" --go -o "$1" "$here/$name.fbs"
		gofmt -w "$1/$name"/*.go
	done
}

# $1: folder that gets <name>/generated/<name>_generated.py and .pyi for each schema
generate_python() {
	for name in $schemas; do
		mkdir -p "$1/$name/generated"
		"$FLATC" --python --gen-onefile --python-typing -o "$1/$name/generated" "$here/$name.fbs"
	done
}

check() {
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	generate_go "$tmp/go"
	if [ -d "$loader" ]; then generate_python "$tmp/python"; fi
	for name in $schemas; do
		diff -ru "$here/$name" "$tmp/go/$name"
		if [ -d "$loader" ]; then
			for f in "${name}_generated.py" "${name}_generated.pyi"; do
				diff -u "$loader/$name/generated/$f" "$tmp/python/$name/generated/$f"
			done
		fi
	done
}

case "${1:-all}" in
go) generate_go "$here" ;;
python) generate_python "$loader" ;;
check) check ;;
all)
	generate_go "$here"
	generate_python "$loader"
	;;
*)
	echo "usage: $0 [go|python|check]" >&2
	exit 2
	;;
esac
