"""Messages as a broken or hostile producer may send them: good ones, changed by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

HEADER = 5
"""The bytes of a magic byte and a schema id, which are left alone but for a small share: each new id is a request."""

_COUNTS = (2 * 10**5, 2 * 10**6, 2 * 10**7, 2**31 - 1, 2**31, 2**32 - 2, 2**40, 2**62, 2**63, 2**64 - 1)


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


# Lengths and counts, also as zigzag; and numbers that do not end where numbers have to.
_BOMBS = [*(varint(n) for n in _COUNTS), b"\xff" * 9 + b"\x7f", b"\xff" * 10 + b"\x01", b"\xff" * 30]


def mutated(chance: random.Random, messages: Sequence[bytes], extras: Sequence[bytes] = ()) -> bytes:
    """One of `messages` with one or two changes. `extras` are bodies that come now and then behind its header."""
    message = chance.choice(messages)
    for _ in range(chance.choice((1, 1, 2))):
        message = _once(chance, message, messages, extras)
    return message


def _once(chance: random.Random, message: bytes, messages: Sequence[bytes], extras: Sequence[bytes]) -> bytes:
    first = 0 if chance.random() < 0.01 else min(HEADER, len(message))
    at = chance.randint(first, len(message))
    match chance.choices(range(7), (30, 20, 15, 15, 5, 14, 1))[0]:
        case 0:
            changed = bytearray(message)
            for _ in range(chance.randint(1, 3) if at < len(message) else 0):
                changed[chance.randrange(first, len(changed))] ^= 1 << chance.randrange(8)
            return bytes(changed)
        case 1:
            end = len(message) if chance.random() < 0.5 else chance.randint(at, len(message))
            return message[:at] + message[end:]
        case 2:
            return message[:at] + chance.randbytes(chance.randint(1, 8)) + message[at:]
        case 3:
            other = chance.choice(messages)
            return message[:at] + other[chance.randint(first, len(other)) :]
        case 4:
            return message[:first] + chance.randbytes(chance.randint(0, 200))
        case 5:
            return message[:at] + chance.choice(_BOMBS) + message[at + 1 :]
        case _:
            if extras and chance.random() < 0.5:
                return message[:HEADER] + chance.choice(extras)
            piece = message[at : at + chance.randint(1, 3)]
            return message[:at] + piece * chance.randint(100, 3_000) + message[at:]
