"""A TCP proxy that closes idle connections, as many do that stand between a client and a server.

python -m tests.support.idle_proxy UPSTREAM_PORT IDLE_S [PORT]
"""

import asyncio
import sys


async def serve(upstream_port: int, idle_s: float, port: int = 0) -> None:
    """Print the port, then a line for each connection that is cut."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await relay(reader, writer, upstream_port, idle_s)

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream_port: int, idle_s: float) -> None:
    """Copy bytes both ways until one side closes, or neither sends any for `idle_s`."""
    up_reader, up_writer = await asyncio.open_connection("127.0.0.1", upstream_port)
    clock = asyncio.get_running_loop().time
    pumps: set[asyncio.Task[None]] = set()
    try:
        async with asyncio.timeout(idle_s) as idle:

            async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    idle.reschedule(clock() + idle_s)
                    sink.write(data)
                    await sink.drain()

            pumps = {asyncio.create_task(pump(reader, up_writer)), asyncio.create_task(pump(up_reader, writer))}
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        print("cut", flush=True)
    finally:
        for task in pumps:
            task.cancel()
        writer.close()
        up_writer.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:])))
