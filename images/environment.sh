#!/bin/sh
# The Python environment of one control-plane image, at $UV_PROJECT_ENVIRONMENT. The Dockerfile runs it, and a test does.
#
#   images/environment.sh dependencies operator    # from the lock file and the rooms' pyproject.toml alone
#   images/environment.sh room operator            # the room itself; then what is never imported goes
set -eu
step="$1"
room="$2"

case "$step" in
dependencies)
    uv sync --quiet --frozen --no-dev --no-install-workspace --package "pointsman-$room"
    ;;
room)
    uv sync --quiet --frozen --no-dev --no-editable --package "pointsman-$room"
    python="$UV_PROJECT_ENVIRONMENT/bin/python"
    site="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    if [ "$room" = gateway ]; then
        # Needed with torch only, which is not here: tokenizers and chat templates are all the gateway takes.
        find "$site/transformers/models" -type f ! -path '*/auto/*' \
            \( -name 'modeling_*' -o -name 'modular_*' -o -name 'image_processing_*' -o -name 'video_processing_*' \) -delete
    fi
    if [ "$room" != operator ]; then
        # Generated classes of every Kubernetes kind; we send and read plain JSON. kopf wants them, so the operator keeps them.
        for client in client aio/client; do
            find "$site/kubernetes/$client/api" "$site/kubernetes/$client/models" -type f ! -name __init__.py -delete
        done
    fi
    # Byte code of what is imported at start, and of nothing else.
    find "$site" -name __pycache__ -type d -prune -exec rm -r {} +
    PYTHONDONTWRITEBYTECODE='' "$python" -c "import pointsman.$room.__main__"
    if [ "$room" = operator ]; then
        PYTHONDONTWRITEBYTECODE='' "$python" -c "import pointsman.operator.nats_authorizer, pointsman.operator.nats_config"
    fi
    if [ "$room" = gateway ]; then
        PYTHONDONTWRITEBYTECODE='' "$python" -c "from transformers import AutoTokenizer"
    fi
    ;;
*)
    echo "environment.sh: no step '$step'; write dependencies or room" >&2
    exit 2
    ;;
esac
