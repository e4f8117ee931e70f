"""Validation of device names."""

import torch

from entformer.errors import ArgumentError


def usable_device(device: torch.device | str) -> torch.device:
    """Returns the device.

    Raises:
        ArgumentError: There is no such device, or torch cannot use it.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as err:
        raise ArgumentError(f"there is no device {device!r}; use cpu, cuda, cuda:1 or mps.") from err
    if found.type == "cpu":
        return found
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise ArgumentError(f"the device {device} is not available: torch finds no CUDA GPU; use cpu.")
        if found.index is not None and found.index >= count:
            raise ArgumentError(
                f"the device {device} is not available: torch finds {count} CUDA GPU{'s' * (count > 1)}; use cuda:0."
            )
        return found
    if found.type == "meta":
        raise ArgumentError("the device meta holds no values; use cpu.")
    try:
        torch.zeros(1, device=found)
    except (RuntimeError, NotImplementedError, AssertionError) as err:
        raise ArgumentError(f"the device {device} is not available in this build of torch; use cpu.") from err
    return found
