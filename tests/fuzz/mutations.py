"""Changes to values and bytes that files hold: each draws from a `random.Random`, so that hypothesis can shrink it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 2**31, -(2**63), 10**30, 0.0, -1.5, 1e-45, 1e38, 1e308, -0.0, "", "linear",
    "none", "\u202e", "\ud800", "../../etc/passwd", "x" * 5000, [], {}, [[]], [None], {"type": "uniform"}, [1e38] * 3,
)  # fmt: skip
_WORDS = (b"NaN", b"Infinity", b"[" * 3000, b"{" * 3000, b"\xff\xfe", b"\x00", b"\xef\xbb\xbf", b'"', b",", b"1" * 5000)


def change_value(data: Any, random: Random) -> Any:
    """`data`, a tree of dicts and lists, with one place changed; dicts and lists are changed in place."""
    place, key = _place(data, random)
    if place is None:
        return random.choice(HOSTILE)
    change = random.choice((_hostile, _scaled, _scaled, _left_out, _doubled, _renamed, _swapped, _deep, _cut))
    change(place, key, random)
    return data


def _place(data: Any, random: Random) -> tuple[Any, Any]:
    """A dict or list somewhere in `data`, and one of its keys; (None, None) where there is none."""
    place, key = None, None
    while isinstance(data, (dict, list)) and data:
        place, key = data, random.choice(list(data) if isinstance(data, dict) else range(len(data)))
        data = place[key]
        if random.random() < 0.15:
            break
    return place, key


def _hostile(place: Any, key: Any, random: Random) -> None:
    place[key] = random.choice(HOSTILE)


def _scaled(place: Any, key: Any, random: Random) -> None:
    """A number changed a little or much; anything else becomes hostile."""
    value = place[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _hostile(place, key, random)
    place[key] = random.choice((-value, value + 1, value - 1, value * 2, value / 2, value * 1e30, value * 1e-30))


def _left_out(place: Any, key: Any, random: Random) -> None:
    del place[key]


def _doubled(place: Any, key: Any, random: Random) -> None:
    """A list with an entry more, a dict with a key more."""
    if isinstance(place, list):
        place.insert(key, place[key])
    else:
        place[f"{key}2"] = place[key]


def _renamed(place: Any, key: Any, random: Random) -> None:
    if isinstance(place, dict):
        place[random.choice([*place, "other"])] = place.pop(key, None)
    else:
        place.reverse()


def _swapped(place: Any, key: Any, random: Random) -> None:
    other = random.choice(list(place) if isinstance(place, dict) else range(len(place)))
    place[key], place[other] = place[other], place[key]


def _deep(place: Any, key: Any, random: Random) -> None:
    for _ in range(random.choice((1, 20, 150))):
        place[key] = [place[key]]


def _cut(place: Any, key: Any, random: Random) -> None:
    if isinstance(place[key], list):
        del place[key][random.choice((0, 1, 2)) :]
    elif isinstance(place[key], str):
        place[key] = place[key][1:]
    else:
        place[key] = None


def changed_json(data: Any, random: Random) -> bytes:
    """The text of `data` after one to three changes; `data` itself may be changed."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = change_value(data, random)
    text = json.dumps(data).encode()
    return changed_text(text, random) if random.random() < 0.1 else text


def changed_text(text: bytes, random: Random) -> bytes:
    """A word more, a piece less, or a piece twice, which repeats keys."""
    at = random.randrange(len(text) + 1)
    end = min(at + random.choice((1, 2, 50, 5000)), len(text))
    return random.choice((
        text[:at] + random.choice(_WORDS) + text[at:], text[:at] + text[end:], text[:at], text[:end] + text[at:],
        random.choice(_WORDS) * 20,
    ))  # fmt: skip


def changed_bytes(data: bytes, random: Random) -> bytes:
    """One to eight bytes or words of a file changed, mostly near its beginning, where headers are."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        at = random.randrange(min(len(found), 256) if random.random() < 0.7 else len(found)) if found else 0
        found[at : at + random.choice((0, 1, 4))] = random.choice((
            b"", b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x80",
            bytes([random.randrange(256)]), bytes([random.randrange(256), random.randrange(256)]),
        ))  # fmt: skip
    return bytes(found[: random.randrange(len(found) + 1)]) if random.random() < 0.1 else bytes(found)
