"""An event loop whose clock jumps to the next thing that is due: hours of waiting in no time."""

import asyncio
import selectors


class _Jumping(selectors.DefaultSelector):
    loop: "VirtualLoop"

    def select(self, timeout=None):
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select(None)  # a thread is at work: real time passes, ours doesn't
        self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """For code that takes all its time from the loop."""

    def __init__(self):
        selector = _Jumping()
        selector.loop = self
        self.now = 1000.0
        super().__init__(selector)

    def time(self):
        return self.now
