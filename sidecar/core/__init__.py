"""What decides. No sockets, files, clocks, environment or asyncio: time comes in as numbers."""
