#!/bin/sh
# aarch64.sh FOLDER: a Python for aarch64 that runs under emulation, and a wheel cross-built for it, installed.
#
# Debian's packages are unpacked into FOLDER, not installed: the machine stays as it is, and no root is needed. Needs
# qemu-user-static and g++-aarch64-linux-gnu, and a host Python with pip in the environment variable HOST.
set -eu
mkdir -p "$1"
folder=$(realpath "$1")
for needed in qemu-aarch64-static aarch64-linux-gnu-g++ apt-get; do
    command -v $needed >/dev/null || { echo "$needed is missing: apt-get install qemu-user-static g++-aarch64-linux-gnu" >&2; exit 1; }
done

if [ ! -e "$folder/.python" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/apt/state/lists/partial" "$folder/apt/cache/archives/partial" "$folder/root" "$folder/bin"
    : > "$folder/apt/status" # as on a machine where nothing is installed, so that all is downloaded
    apt="apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Debug::NoLocking=1 -o APT::Sandbox::User=root
        -o Dir::State=$folder/apt/state -o Dir::State::status=$folder/apt/status -o Dir::Cache=$folder/apt/cache"
    $apt update
    $apt install --download-only --yes --no-install-recommends python3 libpython3-dev libstdc++6
    for package in "$folder"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$folder/root"; done
    rm -rf "$folder/apt"
    python=$(ls "$folder"/root/usr/bin/python3.*[0-9])
    # The name given by -0 makes Python find pyvenv.cfg, and start itself by this script where a test needs a process.
    printf '#!/bin/sh\nexec qemu-aarch64-static -L %s -0 %s %s "$@"\n' "$folder/root" "$folder/bin/python" "$python" > "$folder/bin/python"
    printf '#!/bin/sh\nexec aarch64-linux-gnu-gcc "$@"\n' > "$folder/bin/gcc"
    printf '#!/bin/sh\nexec clang --target=aarch64-linux-gnu "$@"\n' | sed "s|exec clang|exec $(command -v clang || echo clang)|" > "$folder/bin/clang"
    chmod +x "$folder"/bin/*
    printf 'home = %s/root/usr/bin\n' "$folder" > "$folder/pyvenv.cfg"
fi

number=$(basename "$folder"/root/usr/bin/python3.*[0-9] | sed 's/python//')
site=$folder/lib/python$number/site-packages
install() { # PLATFORM TARGET WORDS...: without running anything for aarch64
    platform=$1 target=$2
    shift 2
    "$HOST" -m pip install --quiet --disable-pip-version-check --only-binary :all: --python-version "$number" \
        --platform "$platform" --platform manylinux2014_aarch64 --upgrade --target "$target" "$@"
}
if [ ! -e "$folder/.python" ]; then
    install manylinux_2_28_aarch64 "$site" -c constraints.txt numpy rich shtab
    install manylinux_2_28_aarch64 "$folder/tests" -c constraints.txt scikit-build-core nanobind numpy pytest pytest-xdist hypothesis \
        pillow safetensors filelock typing_extensions sympy networkx jinja2 fsspec
    # The oldest torch that the package supports: later wheels for aarch64 need CUDA. It only checks results.
    install manylinux_2_28_aarch64 "$folder/tests" --no-deps torch==2.6.0
    touch "$folder/.python"
fi

rm -rf "$folder/source" "$folder/cmake" "$folder/built" "$folder/dist" # the sources of an sdist are older than objects built before
mkdir "$folder/source"
"$HOST" -c "import scikit_build_core.build as build; build.build_sdist('$folder/source')" > /dev/null
tar -xzf "$folder"/source/*.tar.gz -C "$folder/source" --strip-components 1
export CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64"
export CFLAGS="-idirafter $folder/root/usr/include" CXXFLAGS="-idirafter $folder/root/usr/include"
build="import scikit_build_core.build as build; build.build_wheel('$folder/built', {'build-dir': '$folder/cmake'})"
(cd "$folder/source" && PYTHONPATH="$folder/tests" "$folder/bin/python" -c "$build" > "$folder/build.log") || { tail -30 "$folder/build.log" >&2; exit 1; }
"$HOST" -m auditwheel repair --wheel-dir "$folder/dist" "$folder"/built/*.whl 2> "$folder/repair.log" || { cat "$folder/repair.log" >&2; exit 1; }
platform=$(basename "$folder"/dist/*.whl .whl | sed 's/.*-//')
rm -rf "$site"/equalbits*
install "$platform" "$site" --no-deps "$folder"/dist/*.whl
cp "$site"/equalbits/runtime/native/_native*.so "$folder/source/src/equalbits/runtime/native" # for the tests, beside its sources
echo "built $(basename "$folder"/dist/*.whl)"
