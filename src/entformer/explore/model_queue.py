"""One request at a time uses the model, and none for ever. In: blocking work. Out: its result, or a refusal in words.

waiting:  at most `places` requests; one more is refused at once (503), one that waits longer than `seconds` too (503)
working:  in a thread, so that the event loop answers others; the work looks at its `Deadline` at every step of the search
          and every layer, and stops there when the time is over (504) or the client has gone away
"""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio import to_thread

Result = TypeVar("Result")

LOOK_EVERY = 0.1  # seconds between two looks whether the client is still there


class Refused(Exception):
    """The request cannot be served now."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Expired(Exception):
    """The time of a request is over; raised inside the work."""


class Deadline:
    """Until when work may go on. Made in one thread, looked at in another."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._gone = False

    def left(self) -> float:
        """Seconds, at least 0."""
        return 0.0 if self._gone else max(self._end - time.monotonic(), 0.0)

    def expire(self) -> None:
        """Nobody waits any more."""
        self._gone = True

    def check(self) -> None:
        """Stop here if the time is over."""
        if self.left() == 0.0:
            raise Expired


class ModelQueue:
    """The only way to the model.

    Args:
        seconds: for a request, waiting and working together.
        places: how many requests may wait.
    """

    def __init__(self, *, seconds: float, places: int) -> None:
        self._seconds = seconds
        self._places = places
        self._turn = anyio.Semaphore(1)
        self._inside = 0  # working or waiting

    @property
    def waiting(self) -> int:
        """Requests whose turn has not come."""
        return max(self._inside - 1, 0)

    async def run(self, work: Callable[[Deadline], Result], gone: Callable[[], Awaitable[bool]]) -> Result:
        """Do `work` in a thread when its turn comes. `gone` tells whether the client has left."""
        if self._inside > self._places:
            raise Refused(503, f"{self.waiting} requests are waiting for the model already; try again in a moment.")
        self._inside += 1
        try:
            deadline = Deadline(self._seconds)
            await self._wait(deadline)
            try:
                if await gone():
                    raise Refused(503, "the client went away before its turn came.")
                return await self._work(work, deadline, gone)
            finally:
                self._turn.release()
        finally:
            self._inside -= 1

    async def _wait(self, deadline: Deadline) -> None:
        try:
            with anyio.fail_after(deadline.left()):
                await self._turn.acquire()
        except TimeoutError:
            raise Refused(
                503, f"the model was busy with other requests for {self._seconds:g} seconds; try again in a moment."
            ) from None

    async def _work(
        self, work: Callable[[Deadline], Result], deadline: Deadline, gone: Callable[[], Awaitable[bool]]
    ) -> Result:
        """The turn is kept until the thread has ended, so work that was given up never meets the next one's."""

        async def look() -> None:
            while not await gone():
                await anyio.sleep(LOOK_EVERY)
            deadline.expire()

        found: list[Result] = []
        problem: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            try:
                found.append(await to_thread.run_sync(work, deadline))
            except Expired:
                advice = "try a shorter sentence or a smaller beam"
                problem = Refused(504, f"this took longer than {self._seconds:g} seconds and was given up; {advice}.")
            except Exception as unexpected:  # leaves the group by itself, not wrapped into a group of exceptions
                problem = unexpected
            finally:
                tasks.cancel_scope.cancel()
        if problem is not None:
            raise problem
        return found[0]
