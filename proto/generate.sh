#!/bin/sh
# Generates the Python code of the wire contract. The generator is pinned and has an environment of its own: its
# output (protobuf 6.31) loads in protobuf 6 and 7, and what it needs does not meet what kvstore needs.
#   generate.sh [--check] DIRECTORY [PYTHON]
set -eu
cd "$(dirname "$0")/.."
check=
if [ "$1" = --check ]; then check=1; shift; fi
target=$1
python=${2:-python3}
venv=${PROTO_VENV:-.venv-proto}
pin=1.75.1

if ! "$venv/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('grpcio-tools') != '$pin')" 2>/dev/null; then
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check "grpcio-tools==$pin" 'protobuf>=6.33,<7' 'setuptools<81'
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/python" -m grpc_tools.protoc -Iproto --python_out="$work" --pyi_out="$work" --grpc_python_out="$work" \
    proto/kvstore/v1/*.proto
# Only control.proto has a service; the generator writes an empty module for each other file.
for module in "$work"/kvstore/v1/*_pb2_grpc.py; do
    grep -q 'class .*Stub' "$module" || rm "$module"
done

if [ -n "$check" ]; then
    find "$target" -name '*_pb2*' | while read -r committed; do
        test -e "$work/kvstore/v1/$(basename "$committed")" || { echo "$committed: no longer generated" >&2; exit 1; }
    done
    for made in "$work"/kvstore/v1/*; do
        diff -u "$target/$(basename "$made")" "$made" || { echo "kvstore/v1 is not what proto/ generates: run 'make proto'" >&2; exit 1; }
    done
    echo "kvstore/v1 is what proto/ generates"
else
    rm -f "$target"/*_pb2.py "$target"/*_pb2.pyi "$target"/*_pb2_grpc.py
    cp "$work"/kvstore/v1/* "$target/"
fi
