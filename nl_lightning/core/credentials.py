"""Credentials never leave the process: addresses that hold them are refused, and error texts do not repeat them.

Settings are stored with a run, shown in reports and handed to loggers. A key or password inside an address would go
with them.
"""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from nl_lightning.core.errors import InputError

__all__ = ["check_no_credentials", "hide_credentials"]


_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*):/+", re.IGNORECASE)
"""How an address begins; a slash too few or too many does not hide what follows."""

_OPTION = re.compile(
    r"([?&;#][^?&;#=\s]*(?:secret|token|pass|pwd|key|sig|cred|auth|sas)[^?&;#=\s]*=)[^?&;#\s'\"]*", re.IGNORECASE
)
"""An option behind an address whose name says that its value is secret."""

_NAMES = {"abfs", "abfss", "az", "wasb", "wasbs", "adl", "hdfs", "viewfs", "sftp", "ssh"}
"""Schemes where a name without a password may stand before the @: Azure's container, or a user."""

_REMEDIES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "abfs": "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
}
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs", "wasb": "abfs", "wasbs": "abfs"}


def check_no_credentials(value: object, what: str) -> None:
    """Raise an InputError if a text, or a text anywhere in lists and mappings, is an address that holds credentials.

    Args:
        value: what to look through.
        what: its name in the error, which does not repeat the value.
    """
    for name, text in _texts("", value):
        for scheme, rest in _addresses(text):
            if _holds_user(scheme, rest) or _OPTION.search(unquote(rest)):
                service = _SAME.get(scheme, scheme)
                remedy = f" ({_REMEDIES[service]})" if service in _REMEDIES else ""
                where = f"{what}, {name}," if name else what
                raise InputError(
                    f"{where} holds credentials in an address ({scheme}://...): a key, password or token. Addresses "
                    "are stored and shown. Leave it out, and give credentials in the environment"
                    f"{remedy} or in the file of your cloud's tools."
                )


def hide_credentials(text: str) -> str:
    """The text with stars in place of the credentials in its addresses."""
    return "\n".join(map(_hidden, text.split("\n")))


def _hidden(line: str) -> str:
    for match in reversed(list(_ADDRESS.finditer(line))):
        start, rest = line[: match.end()], line[match.end() :]
        if _holds_user(_scheme(match), rest):
            line = f"{start}***@{rest.rpartition('@')[2]}"
    return _OPTION.sub(r"\1***", line) if _ADDRESS.search(line) else line


def _texts(name: str, value: object) -> Iterator[tuple[str, str]]:
    """(name, text) of each text; the name leads to it through mappings, such as ``data.environment.log``"""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield name, str(key)
            yield from _texts(f"{name}.{key}" if name else str(key), entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(name, entry)


def _scheme(match: re.Match[str]) -> str:
    return match[1].lower().removeprefix("fsspec+")


def _addresses(text: str) -> Iterator[tuple[str, str]]:
    """(scheme, rest of the text) of each address in a text"""
    return ((_scheme(match), text[match.end() :]) for match in _ADDRESS.finditer(text))


def _holds_user(scheme: str, rest: str) -> bool:
    """Whether a key or a password stands before an @.

    A secret may itself contain a slash, a question mark or an @. So may a path: s3://bucket/a@b and hdfs://host:8020/a@b
    hold no secret.
    """
    before, at, _ = unquote(rest).rpartition("@")
    if not at:
        return False
    if "?" in before:
        return ":" in before
    host, slash, _ = before.partition("/")
    user, inside, _ = host.rpartition("@")
    if slash and not inside:
        _, colon, behind = host.partition(":")
        port = behind.isdigit() and scheme not in ("s3", "gs", "gcs")
        return bool(colon) and not port
    user = user if slash else before
    return ":" in user or (scheme not in _NAMES and user != "anonymous")
