#!/usr/bin/env bash
# Prepares a machine with Ubuntu 24.04 and an NVIDIA GPU (RTX 30 or 40, A100, H100) for a Thread node:
#
#   PREFIX/node   the node, for the CUDA version of the driver
#   PREFIX/vllm   vLLM, whose pins differ, in an environment of its own; left out where the GPU is too small for both
#   and, where there is Docker, NVIDIA's container toolkit
#
# Both are links. Each environment is built beside the one in use, and the link is moved when it is complete: a run that
# fails or is stopped changes nothing, and a second run does only what is left to do.
set -euo pipefail
shopt -s inherit_errexit

readonly NEWEST_DRIVER=580 # knows CUDA 13
readonly OLDEST_DRIVER=575 # knows CUDA 12.9
readonly VLLM_FOR_CUDA12='vllm==0.19.1'
readonly VLLM_MIB=9537 # 10 GB: the instruct model, and room for a few texts at a time
readonly NODE_MIB=3072 # the embedding model, its batches, CUDA itself
readonly PARTS=(LICENSE README.md hatch_build.py kernels protos pyproject.toml service)
readonly TOOLKIT=https://nvidia.github.io/libnvidia-container
readonly KEYRING=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg
readonly SOURCES=/etc/apt/sources.list.d/nvidia-container-toolkit.list

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly source_dir
prefix=/opt/thread
dry_run=false
with_docker=true
with_vllm=true

usage() {
    cat <<'TEXT'
usage: setup-cuda-ubuntu.sh [--prefix DIR] [--no-vllm] [--no-docker] [--dry-run]

Prepares Ubuntu 24.04 with an NVIDIA GPU for a Thread node. Safe to run again.

  --prefix DIR   where the environments go (default: /opt/thread)
  --no-vllm      leave the instruct model's server out
  --no-docker    leave NVIDIA's container toolkit out, even where there is Docker
  --dry-run      check this machine and say what would be done, and change nothing
  --help         this
TEXT
}

say() { printf '%s\n' "$*"; }

fail() {
    printf 'setup-cuda-ubuntu.sh: %s\n' "$*" >&2
    exit 1
}

# Runs a command that changes something.
run() {
    if "$dry_run"; then
        printf '+'
        printf ' %q' "$@"
        printf '\n'
    else
        "$@"
    fi
}

as_root() {
    if [[ $(id -u) == 0 ]]; then
        run "$@"
    else
        command -v sudo >/dev/null || fail "'$1' wants root, and there is no sudo: run this as root"
        run sudo "$@"
    fi
}

parse() {
    while (($#)); do
        case $1 in
        --prefix)
            [[ ${2:-} == /* ]] || fail "--prefix wants an absolute path; see --help"
            prefix=${2%/}
            shift
            ;;
        --no-vllm) with_vllm=false ;;
        --no-docker) with_docker=false ;;
        --dry-run) dry_run=true ;;
        --help)
            usage
            exit 0
            ;;
        *) fail "$1 is not an option; see --help" ;;
        esac
        shift
    done
}

# ---------------------------------------------------------------------------------------------------- what is there

check_system() {
    local file=${OS_RELEASE:-/etc/os-release} name
    # shellcheck disable=SC1090
    name=$(. "$file" 2>/dev/null && printf '%s %s' "${ID:-}" "${VERSION_ID:-}") || name=unknown
    [[ $name == 'ubuntu 24.04' ]] ||
        fail "this is made for Ubuntu 24.04, and here is $name: use the image (docs/docker.md), or install with pip (docs/running.md)"
}

# Sets gpu, driver, memory_mib (of the first device, which the node takes) and extra.
check_gpu() {
    local answer capability
    command -v nvidia-smi >/dev/null ||
        fail "no NVIDIA driver: run 'sudo ubuntu-drivers install', restart the machine, and run this again"
    answer=$(nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader,nounits 2>&1) ||
        fail "the NVIDIA driver does not answer (${answer%%$'\n'*}): restart the machine, which a driver update wants"
    IFS=, read -r gpu driver memory_mib capability <<<"${answer//, /,}"
    [[ $driver =~ ^[0-9]+(\.[0-9]+)*$ && $memory_mib =~ ^[0-9]+$ && $capability =~ ^[0-9]+\.[0-9]+$ ]] ||
        fail "nvidia-smi shows no device (${answer%%$'\n'*}): see 'nvidia-smi -L'"
    say "GPU: $gpu, $memory_mib MiB, driver $driver"
    ((${capability%.*} >= 8)) ||
        fail "$gpu has compute capability $capability, and the kernels need 8.0 (RTX 30, A100) or newer: run the node on the CPU (docs/running.md)"
    ((${driver%%.*} >= OLDEST_DRIVER)) ||
        fail "driver $driver is too old for CUDA 12.9: install $NEWEST_DRIVER or newer ('sudo ubuntu-drivers install'), restart, and run this again"
    if ((${driver%%.*} >= NEWEST_DRIVER)); then
        extra=cuda13
    else
        extra=cuda12
    fi
}

# Sets share, what vLLM is to take of the GPU's memory; turns vLLM off where that leaves too little.
check_memory() {
    share=0.5
    "$with_vllm" || return 0
    if ((memory_mib < VLLM_MIB + NODE_MIB)); then
        say "$gpu is too small for both models, which want $(((VLLM_MIB + NODE_MIB) / 1024 + 1)) GiB: vLLM is left out, and the node finds" \
            "keywords. For an instruct model elsewhere give --graph-url"
        with_vllm=false
    elif ((memory_mib < 2 * VLLM_MIB)); then
        # Rounded up to a twentieth.
        local twentieths=$(((VLLM_MIB * 20 + memory_mib - 1) / memory_mib))
        share=0.$(printf '%02d' $((twentieths * 5)))
    fi
}

check_prefix() {
    local there=$prefix
    while [[ ! -e $there ]]; do there=$(dirname "$there"); done
    [[ -d $there && -w $there ]] ||
        fail "$there cannot be written: run this with sudo, or give --prefix with a folder of your own"
}

# ---------------------------------------------------------------------------------------------------- what is done

install_packages() {
    local package missing=()
    # gcc and Python's headers: Triton compiles what starts its kernels, when the node starts.
    for package in python3.12 python3.12-venv python3.12-dev gcc libc6-dev; do
        [[ $(dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null) == 'install ok installed' ]] ||
            missing+=("$package")
    done
    if ((${#missing[@]} == 0)); then
        say "Ubuntu's packages: all there"
        return
    fi
    say "Ubuntu's packages: installing ${missing[*]}"
    as_root apt-get update
    as_root apt-get install --yes --no-install-recommends "${missing[@]}"
}

# Of everything that goes into the node's environment.
fingerprint_of_node() {
    (
        cd "$source_dir"
        echo "$extra"
        find "${PARTS[@]}" -type f ! -path '*/__pycache__/*' ! -name '*_pb2*' -print0 | sort --zero-terminated | xargs --null sha256sum
    ) | sha256sum | cut -c1-12
}

# environment NAME FINGERPRINT CHECK PIP-ARGUMENT...: PREFIX/NAME with what pip is told to install; CHECK is the program
# in it that has to answer --version.
environment() {
    local name=$1 check=$3 link=$prefix/$1 folder=$prefix/$1-$2
    shift 3
    if [[ -e $folder/.complete && $(readlink "$link") == "$folder" ]]; then
        say "$link: up to date"
        return
    fi
    if [[ ! -e $folder/.complete ]]; then
        say "$link: installing (this downloads several GB)"
        unfinished=$folder
        run rm -rf "$folder"
        run python3.12 -m venv "$folder"
        run "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
        run "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
            fail "pip could not install $name: see above; what was there before is still in use"
        run "$folder/bin/$check" --version ||
            fail "$name does not start: see above; what was there before is still in use"
        run touch "$folder/.complete"
        unfinished=
    fi
    local before
    before=$(readlink "$link" || true)
    run ln --symbolic --force --no-dereference "$folder" "$link.new"
    run mv --no-target-directory "$link.new" "$link"
    forget_old "$name" "$folder" "$before"
}

# The environment before this one stays, to go back to; older ones go.
forget_old() {
    local folder
    for folder in "$prefix/$1"-*; do
        [[ ! -d $folder || $folder == "$2" || $folder == "$3" ]] || run rm -rf "$folder"
    done
}

install_toolkit() {
    if ! command -v docker >/dev/null; then
        say "Docker: not here, so nothing to do for it"
        return
    fi
    if ! command -v nvidia-ctk >/dev/null; then
        if ! "$with_docker"; then
            say "Docker: without NVIDIA's container toolkit no container sees the GPU; run this without --no-docker"
            return
        fi
        say "Docker: installing NVIDIA's container toolkit"
        as_root apt-get install --yes --no-install-recommends ca-certificates curl gnupg
        add_toolkit_repository
        as_root apt-get update
        as_root apt-get install --yes nvidia-container-toolkit
    fi
    "$with_docker" || return 0
    if [[ $(docker info --format '{{json .Runtimes}}' 2>/dev/null) == *'"nvidia"'* ]]; then
        say "Docker: NVIDIA's container toolkit is there"
        return
    fi
    say "Docker: configuring NVIDIA's container toolkit; Docker restarts, and its containers with it"
    as_root nvidia-ctk runtime configure --runtime=docker
    as_root systemctl restart docker
}

add_toolkit_repository() {
    if "$dry_run"; then
        say "+ add NVIDIA's repository $TOOLKIT to $SOURCES"
        return
    fi
    local folder
    folder=$(mktemp --directory)
    if ! curl --fail --silent --show-error --location "$TOOLKIT/gpgkey" --output "$folder/key" ||
        ! curl --fail --silent --show-error --location "$TOOLKIT/stable/deb/nvidia-container-toolkit.list" --output "$folder/list"; then
        rm -rf "$folder"
        fail "NVIDIA's repository cannot be reached: let this machine reach $TOOLKIT, or give --no-docker"
    fi
    gpg --dearmor --yes --output "$folder/keyring" "$folder/key"
    sed -i "s#deb https://#deb [signed-by=$KEYRING] https://#" "$folder/list"
    as_root install -D --mode=644 "$folder/keyring" "$KEYRING"
    as_root install -D --mode=644 "$folder/list" "$SOURCES"
    rm -rf "$folder"
}

finish() {
    local flags=''
    "$with_vllm" && flags=" --vllm-command $prefix/vllm/bin/vllm --vllm-gpu-share $share"
    say
    say "Next:"
    say "  $prefix/node/bin/thread doctor --data-dir DIR$flags"
    say "  $prefix/node/bin/thread --data-dir DIR$flags"
    say "To have it started with the machine: docs/running.md"
}

# What was begun and not completed, which nothing points to yet, and the copy that is installed from: building writes into
# its sources, and these are not root's.
unfinished=
copy=
clean_up() {
    "$dry_run" || rm -rf "$unfinished" "$copy"
}

main() {
    parse "$@"
    check_system
    check_gpu
    check_memory
    check_prefix
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    install_packages
    run mkdir -p "$prefix"
    if ! "$dry_run"; then
        exec 9>"$prefix/.setup.lock"
        flock --nonblock 9 || fail "another setup is working on $prefix: wait until it is done"
    fi
    copy=$prefix/.source
    run rm -rf "$copy"
    run mkdir "$copy"
    run cp -R "${PARTS[@]/#/$source_dir/}" "$copy"
    environment node "$(fingerprint_of_node)" thread "${copy}[$extra]"
    if "$with_vllm"; then
        local wanted=(--requirement "$source_dir/requirements-vllm.txt")
        [[ $extra == cuda13 ]] || wanted=("$VLLM_FOR_CUDA12")
        environment vllm "$( (
            echo "${wanted[@]}"
            cat "$source_dir/requirements-vllm.txt"
        ) | sha256sum | cut -c1-12)" vllm "${wanted[@]}"
    fi
    install_toolkit
    finish
}

main "$@"
