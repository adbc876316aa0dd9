#!/bin/sh
# Compiles this program for the device; needs the SDK of the Cloud AI platform.
set -eu
cd "$(dirname "$0")"
sdk="${POLYBATCH_QAIC_SDK:-/opt/qti-aic}"
compiler="$sdk/exec/qaic-compile"
if [ ! -x "$compiler" ]; then
    echo "$compiler not found: install the SDK, or set POLYBATCH_QAIC_SDK to where it is" >&2
    exit 1
fi
rm -rf qpc.partial
trap 'rm -rf qpc.partial' EXIT
trap 'exit 130' INT TERM
"$compiler" \
    -aic-hw \
    -aic-hw-version=ai100 \
    -m=model.onnx \
    -retained-state \
    -convert-to-fp16 \
    -aic-num-cores=16 \
    '-name=it'"'"'s' \
    -mdp-load-partition-config=mdp_ts_2.json \
    -network-specialization-config=specializations.json \
    -custom-IO-list-file=custom_io.yaml \
    -aic-binary-dir=qpc.partial
if [ ! -s qpc.partial/programqpc.bin ]; then
    echo "$compiler ended without writing programqpc.bin" >&2
    exit 1
fi
rm -rf qpc
mv qpc.partial qpc
echo "the program is ready: $(pwd)"
