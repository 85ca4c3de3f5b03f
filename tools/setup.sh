#!/bin/sh
# Installs missing packages, on Debian 12 and 13 and Ubuntu 24.04.
#
#   tools/setup.sh          packages for building and running
#   tools/setup.sh --test   also packages for the tests
#   tools/setup.sh --docs   also doxygen, for `make docs`
#   tools/setup.sh --dev    also clang, for the tsan and fuzz presets
#
# Does nothing, and needs neither network nor root, if all are installed.
set -eu

packages="gcc libc6-dev cmake ninja-build pkg-config
          libdnnl-dev libjansson-dev libpcre2-dev liburing-dev libxxhash-dev libzstd-dev
          mpich libmpich-dev zlib1g-dev"

if ! command -v dpkg-query >/dev/null; then
    echo "setup: not a Debian or Ubuntu system; please install the equivalents of:" >&2
    echo "$packages" >&2
    exit 0 # CMake names whatever is missing
fi

# shellcheck source=/dev/null
. /etc/os-release
release="$ID $VERSION_ID"

case "${1:-}" in
'') ;;
--docs) packages="$packages doxygen" ;;
--test | --dev)
    packages="$packages g++ python3 shellcheck openmpi-bin libopenmpi-dev iproute2
              locales procps util-linux doxygen"
    case "$release" in # the sources are formatted by version 14; others differ
    'debian 12' | 'ubuntu 22.04' | 'ubuntu 24.04') packages="$packages clang-format-14" ;;
    esac
    ;;
*)
    echo "usage: tools/setup.sh [--test | --docs | --dev]" >&2
    exit 2
    ;;
esac

if [ "${1:-}" = --dev ]; then
    case "$release" in
    'debian 12') packages="$packages clang-14 libclang-rt-14-dev libomp-14-dev" ;;
    'debian 13') packages="$packages clang-19 libclang-rt-19-dev libomp-19-dev" ;;
    'ubuntu 24.04') packages="$packages clang-18 libclang-rt-18-dev libomp-18-dev" ;;
    *) packages="$packages clang libomp-dev" ;;
    esac
fi

# shellcheck disable=SC2016,SC2086 # ${Status} is dpkg's; the names are separate words
installed=$(dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' $packages 2>/dev/null || true)
missing=
for package in $packages; do
    case "
$installed
" in
    *"
installed $package
"* | *"
installed $package:"*) ;;
    *) missing="$missing $package" ;;
    esac
done
if [ -z "$missing" ]; then
    exit 0
fi

echo "setup: installing$missing"
if [ "$(id -u)" = 0 ]; then
    root=
elif command -v sudo >/dev/null; then
    root=sudo
else
    echo "setup: root is required: as root, run  apt-get install$missing" >&2
    exit 1
fi

# shellcheck disable=SC2086 # root is a command or nothing, the packages are separate words
if ! { $root apt-get -q update &&
    $root env DEBIAN_FRONTEND=noninteractive \
        apt-get -q install -y --no-install-recommends $missing; }; then
    echo "setup: apt-get failed, see above. Needed:$missing" >&2
    exit 1
fi
