#!/bin/sh
# Take out of an environment what no running process needs, and say what each thing weighed.
# Usage: slim.sh ENVIRONMENT. The image's build runs it; nothing of ours is in there yet.
set -eu
cd "$1"/lib/python3*/site-packages

drop() { # WHAT PATH...: remove, print MB
    what=$1
    shift
    [ $# -gt 0 ] || return 0
    printf '%6s MB  %s\n' "$(du -smc "$@" 2>/dev/null | tail -1 | cut -f1)" "$what"
    rm -rf "$@"
}

find_all() { find . -path './fedrecgel*' -prune -o "$@" -print; }

before=$(du -sm . | cut -f1)
# Flower installs dependencies with uv, which the image forbids.
drop "uv" ../../../bin/uv ../../../bin/uvx
drop "torch's C++ tests and tools" torch/bin/*test* torch/bin/*Test* torch/bin/protoc* torch/test torch/lib/*test*
drop "C headers" torch/include pyarrow/include numpy/_core/include pyarrow/src pandas/_libs/include
drop "static libraries, CMake files" torch/share $(find_all -name '*.a')
drop "Arrow Flight, S3, ORC, Substrait" $(find_all -path './pyarrow/*' \
    -type f \( -name '*flight*' -o -name '*gandiva*' -o -name '*s3*' -o -name '_orc*' -o -name '_substrait*' \))
drop "tests" $(find_all -type d \( -name tests -o -name test \) \
    ! -path './torch/*' ! -path '*/numpy/testing/*')
drop "sources of compiled modules" $(find_all -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.c' -o -name '*.cpp' -o -name '*.h' \))
weight=$(du -sm torch/lib | cut -f1)
strip --strip-unneeded torch/lib/libtorch_cpu.so torch/lib/libtorch_python.so
printf '%6s MB  symbols of torch\n' "$((weight - $(du -sm torch/lib | cut -f1)))"
printf '%6s MB  before, %s MB after\n' "$before" "$(du -sm . | cut -f1)"

# The package lies in /app; a bundle that a run brings along comes before it on the path.
echo /app > fedrecgel.pth
cd "$OLDPWD"
printf '#!%s/bin/python\nimport sys\nfrom fedrecgel.cli import main\nsys.exit(main())\n' "$1" > "$1/bin/fedrecgel"
chmod 755 "$1/bin/fedrecgel"
