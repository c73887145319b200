# Sourced by the other scripts: `prepare GROUP` makes sure a virtual environment with profilerkit, torch and the
# dependency group exists, and sets $python to its interpreter. PROFILERKIT_VENV names another place for it.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${PROFILERKIT_VENV:-$root/.venv}
python=$venv/bin/python

prepare() {
  local group=$1 stamp wanted
  stamp=$venv/.profilerkit-$group
  wanted=$(cat "$root/pyproject.toml" "$root/constraints.txt" | cksum)
  if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: python3 is $(python3 -V 2>&1)" >&2
    echo "cause: profilerkit needs Python 3.11 or later" >&2
    echo "hint:  put a newer python3 first in PATH" >&2
    exit 2
  }
  echo "preparing $venv (the first time downloads torch and takes a few minutes)" >&2
  [ -x "$python" ] || python3 -m venv "$venv"
  # Dependency groups need pip 25.1; Python 3.11 brings an older one.
  "$python" -m pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'
  (cd "$root" && "$python" -m pip install -qq --disable-pip-version-check \
    -c constraints.txt -e '.[torch]' ${group:+--group "$group"})
  echo "$wanted" >"$stamp"
}
