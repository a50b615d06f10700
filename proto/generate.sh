#!/bin/sh
# Generates the Python code of the wire contract, and of what we speak with etcd. The generator is pinned and has an
# environment of its own: its output (protobuf 6.31) loads in protobuf 6 and 7, and what it needs does not meet what
# kvstore needs.
#   generate.sh [--check] [PYTHON]
set -eu
cd "$(dirname "$0")/.."
check=
if [ "${1:-}" = --check ]; then check=1; shift; fi
python=${1:-python3}
venv=${PROTO_VENV:-.venv-proto}
pin=1.75.1
packages="kvstore/v1 kvstore/cluster/etcd" # folders below proto/, and of what is generated from them

if ! "$venv/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('grpcio-tools') != '$pin')" 2>/dev/null; then
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check "grpcio-tools==$pin" 'protobuf>=6.33,<7' 'setuptools<81'
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in $packages; do
    "$venv/bin/python" -m grpc_tools.protoc -Iproto --python_out="$work" --pyi_out="$work" --grpc_python_out="$work" \
        proto/"$package"/*.proto
done
# Only control.proto has a service; the generator writes an empty module for each other file.
for module in $(find "$work" -name '*_pb2_grpc.py'); do
    grep -q 'class .*Stub' "$module" || rm "$module"
done

if [ -n "$check" ]; then
    for package in $packages; do
        for committed in "$package"/*_pb2*; do
            test -e "$work/$committed" || { echo "$committed: not generated from proto/" >&2; exit 1; }
        done
        for made in "$work/$package"/*; do
            diff -u "$package/$(basename "$made")" "$made" || { echo "$package is not what proto/ generates: run 'make proto'" >&2; exit 1; }
        done
        echo "$package is what proto/ generates"
    done
else
    for package in $packages; do
        rm -f "$package"/*_pb2.py "$package"/*_pb2.pyi "$package"/*_pb2_grpc.py
        cp "$work/$package"/* "$package/"
    done
fi
