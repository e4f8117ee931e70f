"""Runs one request at a time on the model, with a limit on time and on waiting requests.

At most `places` requests wait; one more is refused at once (503), as is one that waits longer than `seconds`. Work runs in a
thread, so that the event loop stays responsive. It checks its `Deadline` at every step of the search and at every layer, and
stops there when the time is over (504) or the client has disconnected.
"""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio import to_thread

Result = TypeVar("Result")

POLL_SECONDS = 0.1  # between two checks whether the client is still connected


class Refused(Exception):
    """The request is refused."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Expired(Exception):
    """The time of a request is over; raised inside the work."""


class Deadline:
    """When work must stop. Created in one thread, checked in another."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Returns the seconds left, at least 0."""
        return max(self._end - time.monotonic(), 0.0)

    def expire(self) -> None:
        """Ends the time now."""
        self._end = 0.0

    def check(self) -> None:
        """Raises `Expired` if the time is over."""
        if self.left() == 0.0:
            raise Expired


class ModelQueue:
    """Admits one request at a time to the model.

    Args:
        seconds: For a request, waiting included.
        places: How many requests may wait.
    """

    def __init__(self, *, seconds: float, places: int) -> None:
        self._seconds = seconds
        self._places = places
        self._limiter = anyio.CapacityLimiter(1)

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return self._limiter.statistics().tasks_waiting

    async def run(self, work: Callable[[Deadline], Result], gone: Callable[[], Awaitable[bool]]) -> Result:
        """Runs `work` in a thread when its turn comes. `gone` returns whether the client has disconnected."""
        if self.waiting >= self._places:
            raise Refused(503, f"{self.waiting} requests are waiting for the model already; try again in a moment.")
        deadline = Deadline(self._seconds)
        try:
            with anyio.fail_after(self._seconds):
                await self._limiter.acquire()
        except TimeoutError:
            raise Refused(
                503, f"the model was busy with other requests for {self._seconds:g} seconds; try again in a moment."
            ) from None
        try:
            if await gone():
                raise Refused(503, "the client disconnected before its turn.")
            return await self._work(work, deadline, gone)
        except Expired:
            advice = "try a shorter sentence or a smaller beam"
            raise Refused(504, f"this took longer than {self._seconds:g} seconds and was stopped; {advice}.") from None
        finally:
            self._limiter.release()  # after the thread has ended: stopped work never overlaps with the next request's

    async def _work(
        self, work: Callable[[Deadline], Result], deadline: Deadline, gone: Callable[[], Awaitable[bool]]
    ) -> Result:
        async def expire_when_gone() -> None:
            while not await gone():
                await anyio.sleep(POLL_SECONDS)
            deadline.expire()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(expire_when_gone)
                found = await to_thread.run_sync(work, deadline)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:  # the work's own exception
            raise group.exceptions[0] from None
        return found
