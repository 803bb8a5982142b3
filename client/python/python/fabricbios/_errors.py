"""The exceptions. Their class, code and exit status are those of `fabricctl` (docs/rdma-client.md)."""

from __future__ import annotations


class Error(Exception):
    """A call has failed."""

    error = "failed"
    """The class: failed, usage, refused, not_found, fenced or unreachable."""
    exit_status = 1
    """The exit status that `fabricctl` has for this class."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "Local",
        reason_class: str = "permanent",
        lease_id: str | None = None,
        end_cause: str | None = None,
        renewable_at_unix_ms: int | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        """The code: of the node if it has refused, such as CapacityExceeded, else of the SDK, such as Ended."""
        self.reason_class = reason_class
        """transient: another try can help; policy: another identity or request; permanent: nothing does."""
        self.lease_id = lease_id
        """The lease that the call was about."""
        self.end_cause = end_cause
        """Why the lease has ended, if it has and the cause is known."""
        self.renewable_at_unix_ms = renewable_at_unix_ms
        """When a lease can be renewed that was renewed too early."""
        self.retry_after_ms = retry_after_ms
        """After how long the same request probably succeeds."""


class FailedError(Error):
    """Something else: this machine, or an answer that is not understood."""


class UsageError(Error, ValueError):
    """The arguments or the identity file are wrong; nothing was done."""

    error = "usage"
    exit_status = 2


class RefusedError(Error):
    """The node has refused the request."""

    error = "refused"
    exit_status = 3


class NotFoundError(Error):
    """There is no such lease or resource, or the lease is over."""

    error = "not_found"
    exit_status = 4


class FencedError(Error):
    """The resource is fenced."""

    error = "fenced"
    exit_status = 5


class UnreachableError(Error):
    """The node cannot be reached, or is not available."""

    error = "unreachable"
    exit_status = 6


CLASSES: dict[str, type[Error]] = {
    it.error: it for it in (FailedError, UsageError, RefusedError, NotFoundError, FencedError, UnreachableError)
}
