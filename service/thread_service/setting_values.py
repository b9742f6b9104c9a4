"""From the words of a caller to the value of a setting.

Each function takes the text and raises `ValueError` with the reason and the remedy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path


def one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"{quoted(text)} is not one of {', '.join(words)}")
        return word

    return parse


def on_or_off(text: str) -> bool:
    return one_of(("on", "off"))(text) == "on"


def whole_number(lowest: int, highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # int() alone would take "1_000", "٣" and a string of a million digits.
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()) or not lowest <= int(text) <= highest:
            raise ValueError(f"{quoted(text)} is not a whole number from {lowest} to {highest}")
        return int(text)

    return parse


def gigabytes(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text.strip()):
        raise ValueError(f"{quoted(text)} is not a number of gigabytes from 0 to 999999")
    return float(text)


def share(text: str) -> float:
    if not re.fullmatch(r"[01]?\.?[0-9]{1,6}", text.strip()) or not 0 < float(text) <= 1:
        raise ValueError(f"{quoted(text)} is not a share, a number over 0 up to 1")
    return float(text)


def host_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:%\[\]-]{1,255}", text.strip()):
        raise ValueError(f"{quoted(text)} is not a host name or IP address")
    return text.strip()


def http_url(text: str) -> str:
    url = text.strip()
    # Not even quoted: what stands before an @ is a password.
    if not re.fullmatch(r"https?://[A-Za-z0-9._:%\[\]-]{1,255}(/[A-Za-z0-9._~/%-]{0,1000})?", url):
        raise ValueError("not an address such as http://127.0.0.1:8000/v1, without a password and a query")
    return url


def header_key(text: str) -> str:
    key = text.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("the key must be printable ASCII without spaces, as it travels in a header")
    return key


def absolute_path(text: str) -> Path:
    if "\0" in text:
        raise ValueError("a path cannot hold a NUL")
    return Path(os.path.abspath(os.path.expanduser(text)))


def quoted(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "…")
