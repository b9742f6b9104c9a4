"""The key of a hosted provider: from the stack's key file, else from the environment. Read at every request, so that a
new one counts at once; never logged, never in a message.

    $RAO_HOME/keys/providers.json    {"mistral": "KEY"}, {"mistral": {"api_key": "KEY"}} or {"MISTRAL_API_KEY": "KEY"}
    MISTRAL_API_KEY, OPENAI_API_KEY
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from thread_service.settings import rao_home

Provider = Literal["mistral", "openai"]

VARIABLES: Mapping[Provider, str] = {"mistral": "MISTRAL_API_KEY", "openai": "OPENAI_API_KEY"}
URLS: Mapping[Provider, str] = {"mistral": "https://api.mistral.ai/v1", "openai": "https://api.openai.com/v1"}
_MEMBERS = ("api_key", "apiKey", "key")


def provider_key(provider: Provider, environment: Mapping[str, str]) -> str:
    """The key, empty when there is none. What cannot travel in a header is none."""
    key = (_from_file(provider, environment) or environment.get(VARIABLES[provider], "")).strip()
    return key if key.isascii() and key.isprintable() and " " not in key else ""


def _from_file(provider: Provider, environment: Mapping[str, str]) -> str:
    home = rao_home(environment)
    if home is None:
        return ""
    try:
        content: Any = msgspec.json.decode((home / "keys" / "providers.json").read_bytes())
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.MsgspecError):
        return ""
    if not isinstance(content, dict):
        return ""
    found = content.get(provider) or content.get(VARIABLES[provider])
    if isinstance(found, dict):
        found = next((found[name] for name in _MEMBERS if found.get(name)), "")
    return found if isinstance(found, str) else ""
