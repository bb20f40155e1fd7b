"""Sizes of launches. Triton's functions of these names serve compiled code too, and take microseconds on the host."""


def cdiv(number: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-number // divisor)


def next_power_of_2(number: int) -> int:
    """Return the least power of two that is at least ``number``, 1 or more."""
    return 1 << (number - 1).bit_length()
