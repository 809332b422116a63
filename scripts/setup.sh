#!/usr/bin/env bash
# Makes .venv: the pinned packages, this project in editable form, and a Java that Spark can use.
#
# Two marks make an interrupted run harmless. .venv/.installed is away while packages are being installed: a .venv
# without it is half made, and is made anew. .venv/.ready is written last: make runs this script until it is there.
# Where packages come from is the business of the machine's own pip and uv configuration.
#
#   PYTHON=python3.12 bash scripts/setup.sh     picks the interpreter
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
ready=$venv/.ready
installed=$venv/.installed
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# Runs a command silently; when it fails, the end of its output is shown.
quietly() {
    "$@" >"$log" 2>&1 && return
    tail -n 15 "$log" >&2
    return 1
}

# A version manager's shim can be on PATH and still not run, so each candidate is tried.
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not a working Python 3.11 or newer."
        command -v "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed and was not found; install it, or name one: PYTHON=/path/to/python3 make setup"
}

make_venv() {
    local python why=""
    if [ -f "$installed" ] && new_enough "$venv/bin/python"; then
        return
    fi
    [ ! -e "$venv" ] || why=" anew, because its last set-up did not finish"
    python=$(find_python)
    say "making .venv with $("$python" --version)$why"
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        fail "$python cannot make virtual environments; install its venv package (Debian and Ubuntu: apt-get install python3-venv)."
    quietly "$python" -m venv --clear "$venv" || fail "$python could not make $venv (see above)."
}

# uv comes with the hashes that requirements.txt holds for it, like everything else.
install_uv() {
    awk '/^[^ #]/ { mine = /^uv==/ } mine' "$root/requirements.txt" >"$venv/uv.txt"
    quietly "$venv/bin/python" -m pip install --disable-pip-version-check --no-deps --require-hashes -r "$venv/uv.txt"
}

# The file is a complete resolution, so --no-deps spares uv from building PySpark once more just to read its metadata.
# uv does not read pip's configuration: where only pip knows the way to the packages, pip does it.
install_packages() {
    if install_uv && quietly "$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --require-hashes \
        --compile-bytecode -r requirements.txt; then
        return
    fi
    say "uv could not install the packages, trying pip (slower)"
    quietly "$venv/bin/python" -m pip install --disable-pip-version-check --require-hashes -r requirements.txt ||
        fail "the packages in requirements.txt could not be installed (see above); is the package index reachable?"
}

install_project() {
    quietly "$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --no-build-isolation --editable . ||
        fail "the project itself could not be installed (see above)."
    "$venv/bin/python" -m compileall -q iceberg_assets iceberg_ingest iceberg_manager resources sensors >/dev/null || true
}

# Prints the home of the Java that $1 starts, if Spark runs on it: 17 to 23 (from 24 on Hadoop's file systems fail to
# load), with the vector module, which Spark's launcher asks for and cut-down runtimes lack.
usable_java() {
    local settings version
    settings=$("$1" --add-modules jdk.incubator.vector -XshowSettings:properties -version 2>&1) || return 1
    version=$(printf '%s\n' "$settings" | awk '$1 == "java.specification.version" { print $3 }')
    case $version in 1[7-9] | 2[0-3]) ;; *) return 1 ;; esac
    printf '%s\n' "$settings" | sed -n 's/^ *java\.home = //p'
}

find_java() {
    local candidate
    for candidate in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java /usr/lib/jvm/*/bin/java "$HOME"/.jdk/*/bin/java \
        "$HOME"/.jdk/*/Contents/Home/bin/java /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        usable_java "$candidate" && return
    done
    return 1
}

install_java_with_apt() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
    say "installing Java 17 with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get install -y -qq openjdk-17-jre-headless && return
    quietly apt-get update -qq && quietly apt-get install -y -qq openjdk-17-jre-headless
}

# The runtime is the smaller download; the whole kit is for a vendor whose runtime lacks a module.
install_java_at_home() {
    local jre
    say "installing Java 17 into ~/.jdk"
    for jre in True False; do
        "$venv/bin/python" -c "import jdk; jdk.install('17', jre=$jre)" >"$log" 2>&1 || {
            tail -n 1 "$log" >&2
            return 1
        }
        find_java >/dev/null && return
    done
}

provide_java() {
    local home
    home=$(find_java) ||
        { install_java_with_apt && home=$(find_java); } ||
        { install_java_at_home && home=$(find_java); } ||
        fail "Spark needs Java 17 to 23 and it could not be found or installed; install a JDK 17 and set JAVA_HOME to it."
    printf '%s\n' "$home" >"$venv/.java-home"
    say "Java at $home"
}

extend_activate() {
    ! grep -q '^# iceberg-assets:' "$venv/bin/activate" || return 0
    cat >>"$venv/bin/activate" <<'ACTIVATE'

# iceberg-assets: the project's own Dagster instance and Java, unless you chose others.
export DAGSTER_HOME="${DAGSTER_HOME:-${VIRTUAL_ENV%/.venv}/.dagster}"
export JAVA_HOME="${JAVA_HOME:-$(cat "$VIRTUAL_ENV/.java-home")}"
ACTIVATE
}

cd "$root"
make_venv
rm -f "$ready" "$installed"
say "installing the packages of requirements.txt"
install_packages
install_project
touch "$installed"
say "packages installed after $SECONDS s"
provide_java
extend_activate
touch "$ready"
say "ready after $SECONDS s; to work in it: source .venv/bin/activate"
