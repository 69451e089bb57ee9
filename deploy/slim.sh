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

# Byte code only for what is used: the root of the file system is read-only at run time, and a
# process for every message would otherwise compile it again.
python="$1/bin/python"
unset PYTHONDONTWRITEBYTECODE
export FLWR_HOME=/tmp/flwr MPLCONFIGDIR=/tmp/matplotlib
"$python" - <<'PYTHON'
import importlib.metadata

import matplotlib.backends.backend_agg, matplotlib.figure, pandas, pyarrow.compute, pyarrow.csv
import pyarrow.json, pyarrow.parquet, safetensors.torch, torch, tqdm
import grpc_health.v1.health, grpc_reflection.v1alpha.reflection
import flwr.clientapp, flwr.serverapp, flwr.serverapp.strategy

for script in importlib.metadata.entry_points(group="console_scripts"):
    if script.value.startswith("flwr."):
        script.load()
weight = torch.nn.Parameter(torch.zeros(2, 2))
for kind in (torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad):
    weight.square().sum().backward()
    kind([weight]).step()
torch.func.grad(lambda x: x.square().sum())(torch.ones(2))
pandas.DataFrame({"a": ["x", "y"]}).groupby("a").size().sort_values()
pyarrow.compute.sort_indices(pyarrow.array([2, 1]))
figure = matplotlib.figure.Figure()
figure.subplots().set_title("x")
matplotlib.backends.backend_agg.FigureCanvasAgg(figure).print_png("/tmp/matplotlib/x.png")
PYTHON
rm -rf /tmp/flwr /tmp/matplotlib
printf '%6s MB  with byte code\n' "$(du -sm "$1" | cut -f1)"
