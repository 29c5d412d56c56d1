"""An HTTP server's address."""

from aiohttp import web

from pointsman.process.errors import CannotListen


async def listen(runner: web.AppRunner, host: str, port: int, *, backlog: int = 128) -> tuple[str, int]:
    """Serve ``runner``, which is set up, on ``host``:``port`` (0: any free one); the address that it got.

    Raises CannotListen.
    """
    try:
        await web.TCPSite(runner, host, port, backlog=backlog).start()
    except OSError as error:
        raise CannotListen(f"{host}:{port}: {error.strerror or error}") from error
    bound: tuple[str, int] = runner.addresses[0][:2]
    return bound
