"""Becoming vLLM's API server: what a worker and the manager of an elastic group do alike."""

import logging
import os
import sys
from collections.abc import Callable, Sequence

from pointsman.api.protocol.names import EmbeddingRole
from pointsman.process.errors import BadSettings
from pointsman.process.lifetime import ExitStatus
from pointsman.process.logs import configure_logs_of_a_guest
from pointsman.workers.errors import ModelUnreadable
from pointsman.workers.model_files import check_readable
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.vllm.flags import FlagNotAllowed, engine_environment, refused_environment

log = logging.getLogger(__name__)

Install = Callable[[], None]


def become_api_server(
    program: str,
    argv: Sequence[str],
    arguments_of: Callable[[WorkerSettings, Sequence[str]], list[str]],
    prepare: Callable[[], Install] = lambda: lambda: None,
) -> int:
    """Serve with the user's ``argv``; returns only if a setting, an argument or the model's folder is wrong (2).

    ``arguments_of`` makes vLLM's arguments. ``prepare`` may raise BadSettings; what it returns is called when vLLM's
    environment is set, before it serves.
    """
    try:
        settings, install = WorkerSettings.read(), prepare()
        arguments = arguments_of(settings, argv)
        check_readable(settings.model)
    except (BadSettings, FlagNotAllowed, ModelUnreadable) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return ExitStatus.WRONG_SETTINGS
    configure_logs_of_a_guest(settings.log_level, settings.log_format, settings.log_fields)
    for name in refused_environment(os.environ):
        del os.environ[name]
        log.warning("variable removed from the environment: it is set by Pointsman", extra={"variable": name})
    os.environ.update(engine_environment(settings, os.environ))
    sys.argv = ["vllm", *arguments]
    if settings.broadcasts_inputs or settings.embedding_role is EmbeddingRole.PRODUCER:
        from pointsman.workers.multimodal.exported_metrics import show_exported_metrics

        show_exported_metrics()

    from vllm.entrypoints.launchers.api_server.entry import main as serve

    install()
    serve()
    return 0
