# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recognise secrets, and remove them from texts that leave a host. Pure functions.

Two nets, one behind the other: the values that the host is known to keep secret, in every spelling they may have, and everything
that looks like a secret by its form or by the name before it. Where the two are in doubt, the text loses.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote, quote_plus

from . import secret_rules
from .foreign_text import parse_json
from .secret_names import NO_VALUE, is_secret_name, is_secret_option, is_secret_variable, words_of

MARK = "<redacted>"
SHORTEST = 4
"""A value that is shorter is in too many words to be taken out everywhere."""

SHORTEST_PATH = 8
"""Of a secret address; shorter paths are words of other addresses, too."""

MOST_NESTED = 4096
"""Characters of a list or mapping below the name of a secret; one without an end is no text."""
MOST_ROW = 4000
"""Characters of a row of a table; longer lines are none."""
MOST_BLOCK = 200
"""Lines of YAML below the name of a secret."""

_QUERY_WORDS = {"key", "sig", "signature", "code"}
"""In the query of a URL these are secrets, too."""
_HEADERS = {"authorization", "cookie"}
"""Headers whose value goes up to the end of the line."""
_HARMLESS = re.compile(
    r"-?\d{1,8}|-?\d*\.\d+(?:e-?\d+)?|true|false|null|none|nil|yes|no|on|off|~|unset|\*+|x{3,}|\.{3}|\$\{?[A-Z_]+\}?|os\.environ/\w+|(?:<redacted>)+",
    re.IGNORECASE,
)
# A secret in base64 may begin with a slash, so a path begins with a usual folder or has three parts.
_PATH = re.compile(
    r"/(?:etc|run|srv|var|home|root|tmp|usr|opt|mnt|media|data|dev|proc|sys|secrets|models|workspace|boot|lib)/.*|(?:/[\w.@-]+){3,}/?"
)

# From its beginning, which may follow an escaped end of a line, and of bounded length: a log may have a megabyte without a blank.
_BEGIN = r"(?:(?<![\w.\-\\])|(?<=\\[nrt])|(?<=%2[27]))"
_NAME = rf"{_BEGIN}-{{0,2}}[A-Za-z_][A-Za-z0-9_.\-]{{0,80}}"
_QUOTE = r"(?:\\{0,15}[\"']|%22|%27|&quot;|&#3[49];)"
_EQUALS = r"(?::=|=>|->|==?|[:\uff1a\uff1d]|%3[DdAa]|\\{1,15}u003[DdAa]|&#(?:61|58);)"
# "name": value   name = value   name: value   NAME=value, also as URLs, HTML and JSON in JSON write it
_PAIR = re.compile(rf"(?P<name>{_NAME}){_QUOTE}?[ \t]*(?P<equals>{_EQUALS})(?:[ \t]|%20)*")
# --name value   "--name", "value"   ('name', 'value')   b'name', b'value'
_OPTION = re.compile(
    rf"(?P<name>{_NAME})(?P<between>[ \t]+(?:\\\r?\n[ \t]*)?|{_QUOTE}?\r?\n[ \t]*(?:-[ \t]+)?|{_QUOTE}\s*,\s*b?(?={_QUOTE}))"
)
# {"name": "NAME", "value": "value"}, as containers are described
_ENTRY = re.compile(
    rf"(?P<begin>{_QUOTE}(?:name|key|variable){_QUOTE}\s*:\s*{_QUOTE}(?P<name>[\w.-]{{1,80}}){_QUOTE}\s*,\s*{_QUOTE}value{_QUOTE}\s*:\s*)",
    re.IGNORECASE,
)
_OPEN = re.compile(rf"b?(?P<quote>{_QUOTE})")
# Up to a blank or a quote. A value may contain the characters that end it; they end it if a blank or another pair follows.
_BARE = re.compile(
    r"(?:<redacted>|[^\s\"'\\,;&)}\]|<>]|\\(?![\"'nrt])|[\"'](?=\w)"
    r"|[,;&)}\]|](?![\s\"'\\,;&)}\]|]|$|-|[A-Za-z_][\w.\-]{0,60}[\"']?[ \t]?[=:]))+",
    re.MULTILINE,
)
_LEAF = re.compile(
    r"(?P<quote>\\{0,15}[\"'])(?P<inner>.*?)(?P=quote)(?P<key>\s*:)?|[^\s,\[\](){}\"':=\\]+(?=\s*(?:[,\])}]|$))",
    re.DOTALL,
)
_SCALAR = re.compile(r"(?:![\w/!.]*[ \t]*)?(?P<block>[|>][-+0-9]*)?[ \t]*(?:#.*)?")
_ITEM = re.compile(r"(?P<lead>[ \t]*(?:-[ \t]+)?(?:[\w.\-]+:[ \t]+)?)(?P<value>.*)")
_GLUED = re.compile(r"(?:[\w$+/=@#!%^*~.\-]|[\"'](?=\w))[^\s,;)}\]]*")
"""Behind a closed quote: 'a'"b" is one word of a shell."""
_NEXT_OPTION = re.compile(r"[\\\"'b]*(?:--|-\w{0,10}(?![\w-]))")
_BLANKS, _COMMA = re.compile(r"[ \t]+(?=[\w\"'])"), re.compile(r"\s*,\s*(?=\\*[\"'])")
_ESCAPED = re.compile(r"\\{1,15}[nr\"']")
_CLOSERS = {mark: re.compile(rf"\\{{0,15}}{mark}") for mark in "\"'"}
_NAME_CELL = re.compile(r"[ \t]*[\"'`*]{0,3}[A-Za-z][\w .-]{0,60}[\"'`*]{0,3}[ \t]*\r?")
_ABOUT = re.compile(r"(?P<name>[A-Za-z_]+)\\*[\"']?\s*[:=]\s*\Z")
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_NEST = re.compile(r"[\[\](){}]|(?P<over>\n(?![ \t\])}]))|(?P<quote>\\{0,15}[\"'])")

_INVISIBLE = re.compile(
    r"(?:\x1b|\\{1,4}u001b|\\{1,4}x1b|\\{1,4}033|\\{1,4}e)\[[0-9;:?]{0,40}[A-Za-z]"
    r"|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
"""Colours, titles and marks without width: they separate a name from its value, and no reader of a report needs them."""

_WORD = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
"""A word begins here, also after an escaped end of a line and after an underscore."""
_RANDOM = r"(?![/~.])(?=[\w.+/~\-]*\d)(?=[\w.+/~\-]*[A-Za-z])[\w.+/~\-]{8,}=*(?![\w=(])"
"""Letters with digits, as words of a sentence are not."""
_JWT = r"(?:(?<![\w-])|(?<=\\[nrt]))eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"
"""It begins where a word does, also after a dash: from each C(eyJ-) in a long row it would be quadratic."""
_PREFIXED = (
    rf"{_WORD}(?:pypi-|GOCSPX-|glsa_|glc_|hv[sbr]\.|dckr_(?:pat|oat)_|whsec_|sbp_|ntn_|figd_|sntry[su]_|lin_api_|shp(?:at|ca|pa|ss)_"
    r"|sq0(?:atp|csp|idp)-|PMAK-|NRAK-|rubygems_|AKCp|ATATT3|gl(?:ft|dt|rt|soat|imt|agent|ptt|cbt)-|sk_or_|csk-|fw_|vck_|tfp_|secret-token:)"
    r"[\w+/=~-]{16,}"
    rf"|{_WORD}SG\.[\w-]{{8,}}\.[\w-]{{8,}}|{_WORD}SK[0-9a-f]{{32}}(?![0-9a-f])|{_WORD}AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{{16,}}"
)
"""Tokens with the prefix of their vendor, also where the length is another one than C(secret_rules) expects."""
_TOKENS = (
    rf"{_WORD}(?:gsk_|r8_|npm_|dop_v1_)[A-Za-z0-9]{{16,}}",
    rf"{_WORD}(?:gh[pousr]_[A-Za-z0-9]{{16,}}|github_pat_[A-Za-z0-9_]{{20,}}|glpat-[A-Za-z0-9_-]{{16,}})",
    rf"{_WORD}xox[abeposr]-[A-Za-z0-9-]{{8,}}",
    rf"{_WORD}(?:AKIA|ASIA)[0-9A-Z]{{16}}\b|{_WORD}AIza[A-Za-z0-9_-]{{30,}}",
    _JWT,
    r"(?<!\d)\d{8,10}:[A-Za-z0-9_-]{34,}",  # a bot of Telegram
    r"(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/-]+|(?<=/api/webhooks/)\d+/[\w-]+",
)
"""Tokens that nobody writes by chance."""
_COMMAND_PASSWORDS = (
    # a glued -p, as in mysql -psecret; a blank before it makes it the name of a database
    r"\b(?:mysql\w*|mariadb[\w-]*)\b[^\n|;&]{0,300}?[ \t]-p(?P<secret>[^\s\"']{3,}|\"[^\"\n]+\"|'[^'\n]+')",
    r"\bsshpass\b[ \t]+(?:-[a-oq-z]\w*[ \t]+)*-p[ \t]*(?P<secret>[^\s\"']+|\"[^\"\n]+\"|'[^'\n]+')",
    r"\b(?:docker|podman|nerdctl|helm|skopeo|oras|crane|buildah)\b[^\n|;&]{0,60}?\blogin\b[^\n|;&]{0,300}?[ \t]-p[ \t=]*"
    r"(?P<secret>[^\s\"']+|\"[^\"\n]+\"|'[^'\n]+')",
    r"\b(?:wandb|hf auth|huggingface-cli|vault|doppler|railway|neptune|comet)[ \t]+login[ \t]+(?:--\w+[ \t]+)*(?P<secret>[\w.-]{8,})",
    r"\bredis-cli\b[^\n|;&]{0,300}?[ \t]-a[ \t]+(?P<secret>\S{3,})",
    r"\bldap(?:search|modify|add|whoami)\b[^\n|;&]{0,300}?[ \t]-w[ \t]+(?P<secret>\S{3,})",
    r"\bsmbclient\b[^\n|;&]{0,300}?[ \t]-U[ \t]*[^\s%]+%(?P<secret>\S{3,})",
    r"\bhtpasswd\b[ \t]+-\w*b\w*[ \t]+\S+[ \t]+\S+[ \t]+(?P<secret>\S{3,})",
    r"\b(?:7z|7za|rar|unrar)\b[^\n|;&]{0,300}?[ \t]-p(?P<secret>[^\s\"']{3,})",
    r"\b(?:un)?zip\b[^\n|;&]{0,300}?[ \t]-P[ \t]+(?P<secret>\S{3,})",
    r"\b(?:pass|passin|passout)[ \t=]+pass:(?P<secret>\S{3,})",
    r"\becho[ \t]+(?:-\w+[ \t]+)?[\"']?(?P<secret>[^\s\"'|]{3,})[\"']?[ \t]*\|[ \t]*sudo\b[^\n]{0,60}?-S",
    r"\becho[ \t]+[\"']?[\w.-]{1,32}:(?P<secret>[^\s\"'|]{3,})[\"']?[ \t]*\|[ \t]*(?:sudo[ \t]+)?chpasswd",
    r"\bipmitool\b[^\n|;&]{0,300}?[ \t]-P[ \t]+(?P<secret>\S{3,})",
    r"\b(?:wifi-sec\.psk|802-11-wireless-security\.psk|wpa_passphrase[ \t]+\S+)[ \t]+(?P<secret>\S{3,})",
)
_FILE_FORMS = (
    # crypt(3) hashes of /etc/shadow and htpasswd, and hashes of databases
    r"\$(?:[1567y]|2[abxy]?|gy|apr1|argon2\w{1,3}|scrypt|sha1|md5|pbkdf2[\w-]{0,12})\$[\w./+,=$-]{8,}|\{S?SHA(?:256|512)?\}[\w+/]{16,}={0,2}",
    # ~/.pgpass: host:port:database:user:password
    r"(?m)^(?:[\w.*-]+|\[[0-9a-f:]+\]):(?:\d{1,5}|\*):[\w.*-]+:[\w.*@-]+:(?P<secret>[^\s:]{3,})[ \t]*$",
    r"\$ANSIBLE_VAULT;[\d.]{1,8};\w{1,16}(?:;[\w.-]{1,64})?(?:(?:\r?\n|\\n)[ \t]*[0-9a-f]{2,120}(?![0-9A-Za-z]))*",
    # redis.conf
    r"(?m)^[ \t]*(?:requirepass|masterauth)[ \t]+[\"']?(?P<secret>[^\s\"']{3,})",
    # .netrc: machine NAME login NAME password VALUE
    r"\blogin[ \t\n]+\S+[ \t\n]+password[ \t\n]+(?P<secret>\S+)",
    r"(?i)(?<=ntfy\.sh/)[\w-]{4,64}|\bntfy[\w .-]{0,16}topic[\"']?[ \t]*(?:[=:]|is)[ \t]*[\"']?(?P<secret>[\w-]{4,64})",
    r"(?i)(?<=\.webhook\.office\.com/)[\w/@-]{16,}|(?<=\.logic\.azure\.com)(?::\d+)?/workflows/[^\s\"'<>]{8,}",
    r"(?i)\bpin(?:[ _-]?code)?[\"']?[ \t]*(?:[:=]|is)[ \t]*[\"']?(?P<secret>\d{4,8})(?!\d|\.\d)",
)

_FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
        r"(?i)\bbearer(?:\s|%20|\+)+(?P<secret>[A-Za-z0-9._~+/=-]{4,})",
        r"(?i)\bbasic(?:\s|%20)+(?P<secret>[A-Za-z0-9+/]{8,}={0,2})",
        rf"{_WORD}hf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{{8,}}|[a-z]{{16,}})",  # and not hf_endpoint
        rf"{_WORD}(?:ya29\.|tvly-|xai-|pplx-|tskey-)[A-Za-z0-9_-]{{8,}}",
        rf"{_WORD}sk-[A-Za-z0-9_-]{{6,}}|{_WORD}(?:sk|rk|pk)[-_](?:live|test|lf)[-_][A-Za-z0-9-]{{8,}}",
        rf"{_WORD}nvapi-[A-Za-z0-9_-]{{8,}}",
        *_TOKENS,
        # A webhook's address is its secret; it is known by its name or by its path.
        r"(?i)\b(?:\w{0,40}(?:webhook|ntfy|notify|discord|slack|teams)\w{0,40})_?(?:url|address)?(?:\\{0,4}[\"'])?[ \t]*[:=][ \t]*"
        r"(?:\\{0,4}[\"'])?https?://[^/\s\"']+/(?P<secret>[^\s\"'\\,;)}\]]{4,})",
        r"(?i)://[^/\s\"']+/(?:[\w/-]*/)?(?:web)?hooks?/(?P<secret>[\w./?=&%+-]{8,})",
        r"(?<=://)[^/\s:@\"']{0,200}:(?!\d{1,5}/)[^\s@\"']{1,400}(?=@)",
        r"(?<=https://)[^/\s:@\"'<]{8,400}(?=@)|(?<=http://)[^/\s:@\"'<]{8,400}(?=@)",
        r"\b(?:curl|wget)\b[^\n]{0,400}?\s(?:-u|--user)[= ]?[\"']?[^\s:\"']+:(?P<secret>[^\s\"']+)",
        r"\bSecretStr\([\"'](?P<secret>[^\"']+)",
        r"(?i)<(?:\w*(?:password|passwd|secret|token|apikey|api_key))>(?P<secret>[^<]{1,4096})</",
        _PREFIXED,
        *_COMMAND_PASSWORDS,
        *_FILE_FORMS,
    )
)

_CERTAIN = tuple(
    re.compile(pattern)
    for pattern in (
        r"-----BEGIN [A-Z ]*PRIVATE KEY",
        rf"{_WORD}hf_[A-Za-z0-9]{{16,}}",
        rf"{_WORD}(?:ya29\.|tvly-|xai-|pplx-|tskey-)(?:[A-Za-z0-9]{{1,12}}-)?(?=[A-Za-z]*\d)[A-Za-z0-9_]{{20,}}",
        rf"{_WORD}sk-(?:[a-z]{{1,8}}[0-9]{{0,3}}-){{0,3}}(?=[A-Za-z_]*\d)[A-Za-z0-9_]{{16,}}",
        rf"{_WORD}nvapi-[A-Za-z0-9_-]{{16,}}",
        *_TOKENS,
        r"(?<=://)[^/\s:@\"']{0,200}:(?!\d{1,5}/)[^\s@\"']{1,400}(?=@)",
        r"(?<=://)(?=[A-Za-z_-]*\d)[\w.-]{16,400}(?=@)",
        r"(?i:\bbearer)\s+(?=[A-Za-z._~+/-]*[0-9=])[A-Za-z0-9._~+/=-]{16,}",
        r"(?i:authorization)[\"']?\s*[:=]\s*[\"']?(?i:basic|bearer)\s+\S{8,}",
        _PREFIXED,
    )
)
"""What nobody writes by chance."""

_SAID = re.compile(
    r"(?i:\b(?:api[ _-]?key|password|passphrase|token|secret)|\b[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD))"
    rf"(?i: (?:is|was|value|given|used|provided))?[:=]?[ \t]+[\"'`]?(?P<secret>{_RANDOM})"
)
"""What a sentence calls a secret, and looks like one."""


def could_be_secret(value: Any, name: str = "") -> bool:
    """Tell whether a value can be a secret; empty values, switches, counts and paths of files cannot. name: of the secret; a short number may be a password."""
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and not _keeps(str(value), name)


_compiled = cache(re.compile)


def _vendor_rules(text: str) -> Iterator[re.Pattern[str]]:
    """Yield the rules of C(secret_rules) of which a keyword is in a text."""
    lower = text.lower()
    for keywords, pattern in secret_rules.RULES:
        if any(word in lower for word in keywords):
            yield _compiled(pattern)


def holds_secret(value: Any) -> bool:
    """Tell whether a text is sure to have a token of a known form in it, a private key, or a password in a URL.

    It refuses what people write; C(clean_forms), which takes out what leaves a host, takes more for a secret.
    """
    if not isinstance(value, str):
        return False
    return any(form.search(value) for form in _CERTAIN) or any(form.search(value) for form in _vendor_rules(value))


def clean_forms(text: str, mark: str = MARK) -> str:
    """Return a text without tokens of a known form, private keys and passwords in URLs."""
    for form in (*_FORMS, *_vendor_rules(text)):
        text = form.sub(lambda match: _hidden(match, mark), text)
    return text


def _hidden(match: re.Match[str], mark: str = MARK) -> str:
    """Return a match with a mark instead of its secret; a harmless value stays.

    The secret is the group of that name, else the first matched group (as in gitleaks' rules), else the whole match.
    """
    group: int | str = next((number for number in range(1, match.re.groups + 1) if match[number]), 0)
    if "secret" in match.re.groupindex:
        value = (match["secret"] or "").strip("\"'")
        group = 0 if match["secret"] is None else "secret"
        if group and (_keeps(value, "pass") or (value.isdigit() and not match[0].lower().startswith("pin"))):
            return match[0]
    begin, end = match.span(group)
    return match[0] if begin == end else f"{match.string[match.start() : begin]}{mark}{match.string[end : match.end()]}"


def without_secrets(words: Iterable[Any], secrets: Iterable[str] = ()) -> list[str]:
    """Return the words of a command without its secrets, each word for itself: a program inside a word (C(bash -c)) included.

    secrets: known secrets, such as values in the environment of the same program.
    """
    redactor = Redactor(secrets)
    cleaned: list[str] = []
    option = ""  # whose values follow
    for word in map(str, words):
        name, equals, value = word.partition("=")
        if word.startswith("-") and len(word) > 1:
            option = name.lstrip("-") if not equals and is_secret_option(name.lstrip("-")) else ""
            secret = equals and is_secret_option(name.lstrip("-")) and could_be_secret(value, name)
            cleaned.append(f"{name}={MARK}" if secret else redactor.clean(word))
        elif option and could_be_secret(word, option):
            cleaned.append(MARK)
        else:
            secret = equals and name.isidentifier() and is_secret_variable(name) and could_be_secret(value, name)
            cleaned.append(f"{name}={MARK}" if secret else redactor.clean(word))
    return cleaned


def spellings(value: str) -> set[str]:
    """Return the spellings of a value in texts: plain, quoted, in JSON, URL, HTML, base64, and each of several lines."""
    spelled: set[str] = set()
    # In an address, such as a webhook's, the path is the secret; logs and messages may show it without the host.
    paths = {address.partition("://")[2].partition("/")[2] for address in value.split() if "://" in address}
    for part in {value, value.strip(), *value.split("\n"), *(path for path in paths if len(path) >= SHORTEST_PATH)}:
        plain = part.strip()
        if len(plain) < SHORTEST or plain.startswith("-----"):
            continue
        raw = plain.encode()
        escaped = {json.dumps(plain, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
        # JSON inside a log in JSON is escaped twice.
        twice = {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in escaped for ascii_only in (True, False)}
        urls = {quote(plain, safe=""), quote(plain), quote_plus(plain)}
        spelled |= {plain, repr(plain)[1:-1], html.escape(plain), *escaped, *twice, *urls}
        spelled |= {re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), url) for url in urls}
        # YAML and shells in single quotes; units and compose files.
        spelled |= {plain.replace("'", other) for other in ("''", "'\\''", "'\"'\"'")}
        spelled |= {plain.replace("%", "%%"), plain.replace("$", "$$"), plain.replace("%", "%%").replace("$", "$$")}
        # In base64, only the part that does not depend on its neighbours in the same word.
        for shift in range(3):
            coded = base64.b64encode(b"\0" * shift + raw).decode()
            first = -(-shift * 8 // 6)
            stable = coded[first : (shift + len(raw)) * 8 // 6]
            if len(stable) >= 8:
                spelled |= {stable, stable.replace("+", "-").replace("/", "_")}
    return spelled


def _keeps(value: str, name: str = "") -> bool:
    """Tell whether a value is harmless: empty, a word like none, a path, a short number that is no password."""
    text = value.strip()
    if not text or _HARMLESS.fullmatch(text):
        return not ("pass" in name.lower() and re.fullmatch(r"[\d.]{4,}", text))
    # The name of a variable is the source of a secret.
    return bool(_PATH.fullmatch(text)) or bool("_" in text and text.isupper() and is_secret_variable(text))


def _is_secret(name: str) -> bool:
    """Tell whether a name in a text is a secret's; a name in capitals is a variable of an environment."""
    return is_secret_name(name) or (name.isupper() and is_secret_variable(name))


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _end_of_quoted(text: str, opening: re.Match[str]) -> tuple[int, int]:
    """Return the end of a quoted text without and with its quote; both are the end of the line if the quote is missing."""
    mark = opening["quote"]
    line = _line_end(text, opening.end())
    if mark[-1] not in "\"'":
        end = text.find(mark, opening.end(), line)
        return (end, end + len(mark)) if end >= 0 else (line, line)
    deep = len(mark) - 1
    pattern = _CLOSERS[mark[-1]]
    at = opening.end()
    while at < line:
        close = pattern.search(text, at, line)
        if not close:
            return line, line
        before = len(close[0]) - 1
        ends = before <= deep if deep else before % 2 == 0
        doubled = (
            deep == 0 and mark == "'" and text[close.end() : close.end() + 1] == "'" and close.start() > opening.end()
        )
        if ends and not doubled:
            return close.end() - 1 - min(before, deep), close.end()
        at = close.end() + (1 if doubled else 0)
    return line, line


def _end_of_nested(text: str, start: int) -> int:
    """Return the end of the list or mapping that begins at C(start); a missing bracket ends at the next unindented line."""
    waiting: list[str] = []
    at, most = start, min(len(text), start + MOST_NESTED)
    while at < most:
        mark = _NEST.search(text, at, most)
        if not mark:
            break
        # An unindented line belongs to the next value.
        if mark["over"]:
            return mark.start()
        at = mark.end()
        if mark["quote"]:
            at = _end_of_quoted(text, mark)[1]
        elif mark[0] in _BRACKETS:
            waiting.append(_BRACKETS[mark[0]])
        elif waiting and mark[0] == waiting[-1]:
            waiting.pop()
            if not waiting:
                return at
    return max(at, most)


def _is_first_of_line(text: str, start: int, marks: str) -> bool:
    """Tell whether only blanks and C(marks) are in front of a place in its line."""
    return not text[text.rfind("\n", 0, start) + 1 : start].strip(marks)


def _split_row(line: str) -> tuple[str, list[str]]:
    """Return the separator and the cells of a row of a table; no cells for another line."""
    separator = next((mark for mark in "|\t;," if mark in line), "")
    return separator, line.split(separator) if separator and "=" not in line else []


def _name_columns(cells: Iterable[str]) -> set[int]:
    """Return the columns whose cell is the name of a secret."""
    return {
        index for index, cell in enumerate(cells) if _is_secret(cell.strip("\"'`* ")) and _NAME_CELL.fullmatch(cell)
    }


def _names_secret(name: str, before: str) -> bool:
    """Tell whether the name of a pair marks its value as a secret; before: the character in front of the name."""
    in_query = before in ("?", "&", ";") and _QUERY_WORDS & set(words_of(name))
    is_option = name[0] == "e" and _is_secret(name[1:]) and name[1:].isupper()  # -eNAME of docker run
    return bool(in_query or is_option or _is_secret(name))


class Redactor:
    """Removes secrets from texts and counts them."""

    def __init__(self, secrets: Iterable[str]) -> None:
        spelled = {spelling for secret in secrets for spelling in spellings(secret)}
        # Longest first: a value may be part of another.
        ordered = sorted(spelled, key=lambda text: (-len(text), text))
        self._known = re.compile("|".join(re.escape(text) for text in ordered)) if ordered else None
        self.taken = 0

    def clean(self, text: str) -> str:
        """Return a text without known secrets and values that look like secrets."""
        text = _INVISIBLE.sub("", text).replace("\0", " ")
        if self._known:
            text = self._known.sub(self._form, text)
        for form in (*_FORMS, *_vendor_rules(text)):
            text = form.sub(self._form, text)
        text = self._clean_tables(text)
        text = _walk(text, _ENTRY, self._entry)
        text = _walk(text, _OPTION, self._option)
        text = _walk(text, _PAIR, self._pair)
        return _SAID.sub(self._form, text)

    def _form(self, match: re.Match[str]) -> str:
        """Return a match of a form without its secret."""
        hidden = _hidden(match)
        self.taken += hidden != match[0]
        return hidden

    def _replaced(self, by: str, end: int) -> tuple[str, int]:
        self.taken += 1
        return by, end

    def _value(self, text: str, at: int, name: str) -> tuple[str, int] | None:
        """Return the replacement of the value at a place, and the end of the value; None for a harmless value."""
        opened = _OPEN.match(text, at)
        if opened:
            inner_end, end = _end_of_quoted(text, opened)
            glued = _GLUED.match(text, end)
            if glued:
                return self._replaced(MARK, glued.end())
            if _keeps(text[opened.end() : inner_end], name):
                return None
            return self._replaced(f"{opened[0]}{MARK}{text[inner_end:end]}", end)
        if text[at : at + 1] in ("[", "(", "{"):
            end = _end_of_nested(text, at)
            glued = _GLUED.match(text, end)
            return self._replaced(MARK, glued.end()) if glued else (_LEAF.sub(self._leaf, text[at:end]), end)
        bare = _BARE.match(text, at)
        return None if not bare or _keeps(bare[0], name) else self._replaced(MARK, bare.end())

    def _leaf(self, match: re.Match[str]) -> str:
        """Remove a text in a list or mapping below the name of a secret, except names and paths."""
        mark = match["quote"] or ""
        inner = match["inner"] if mark else match[0]
        about = _ABOUT.search(match.string[max(match.start() - 40, 0) : match.start()])
        if match["key"] or (about and words_of(about["name"])[-1] in NO_VALUE):
            return match[0]
        if _keeps(inner):
            return match[0]
        return self._replaced(f"{mark}{MARK}{mark}", 0)[0]

    def _pair(self, text: str, match: re.Match[str]) -> tuple[str, int] | None:
        """Remove the value behind a name and an equals sign or colon."""
        name, at, before = match["name"].lstrip("-"), match.end(), text[match.start() - 1 : match.start()]
        if not _names_secret(name, before):
            return None
        line_end = _line_end(text, at)
        if match["equals"] != ":":
            return self._value(text, at, name)
        scalar = _SCALAR.fullmatch(text, at, line_end)
        if scalar:
            return self._block(text, match, line_end, bool(scalar["block"]))
        bare = _BARE.match(text, at)
        if _OPEN.match(text, at) or text[at] in "[({" or (bare and _keeps(bare[0], name)):
            return self._value(text, at, name)
        if _HEADERS & set(words_of(name)) or _is_first_of_line(text, match.start(), " \t-?"):
            # The end of a header or a line of YAML, or of the quotes around it in a command.
            around = text.find(before, at, line_end) if before and before in "\"'" else -1
            escaped = _ESCAPED.search(text, at, line_end)
            ends = (around, escaped.start() if escaped else -1, line_end)
            return self._replaced(MARK, min(end for end in ends if end >= 0))
        return self._value(text, at, name)

    def _block(self, text: str, match: re.Match[str], line_end: int, literal: bool) -> tuple[str, int] | None:
        """Remove the lines of YAML below the name of a secret: a whole text, or the values of a list or a mapping."""
        begins = text.rfind("\n", 0, match.start()) + 1
        indent = match.start() - begins if not text[begins : match.start()].strip() else _depth(text[begins:line_end])
        lines = [text[match.end() : line_end]]
        end = line_end
        while end < len(text) and len(lines) <= MOST_BLOCK:
            line = text[end + 1 : _line_end(text, end + 1)]
            depth = _depth(line)
            if line.strip() and depth <= indent and (literal or depth < indent or not line[depth:].startswith("- ")):
                break
            end += 1 + len(line)
            lines.append(self._line(line, literal))
        return ("\n".join(lines), end) if len(lines) > 1 else None

    def _line(self, line: str, literal: bool) -> str:
        item = _ITEM.fullmatch(line)
        lead, value = (item["lead"], item["value"]) if item and not literal else (line[: _depth(line)], line.strip())
        if value.strip() in ("", MARK) or (
            not literal and (_keeps(value.strip("\"', ")) or value.rstrip()[-1] in ":{[" or value[0] in "}])")
        ):
            return line
        return self._replaced(f"{lead}{MARK}", 0)[0]

    def _option(self, text: str, match: re.Match[str]) -> tuple[str, int] | None:
        """Remove the argument behind an option, or the second of two texts whose first names it."""
        name, option = match["name"].lstrip("-"), match["name"].startswith("-")
        blank = "," not in match["between"]
        if not _is_secret(name) or not self._has_argument(text, match, option, blank):
            return None
        out, end = "", match.end()
        gap: re.Match[str] | None = None
        while not out or gap:
            at = gap.end() if gap else end
            replaced = None if _NEXT_OPTION.match(text, at) else self._value(text, at, name)
            if not replaced:
                break
            out, end = f"{out}{gap[0] if gap else ''}{replaced[0]}", replaced[1]
            # vLLM takes several keys behind one --api-key.
            several = option and "key" in words_of(name)
            gap = (_BLANKS if blank else _COMMA).match(text, end) if several else None
        return (out, end) if out else None

    @staticmethod
    def _has_argument(text: str, match: re.Match[str], option: bool, blank: bool) -> bool:
        if option:
            # Behind an option that is not alone in its line, the text in the next line is no argument.
            next_line = match["between"].lstrip("\"' ")[:1] in ("\r", "\n")
            return not (blank and next_line) or _is_first_of_line(text, match.start(), " \t-\"'")
        before = text[max(match.start() - 20, 0) : match.start()].rstrip("\\\"'b").rstrip()
        opened = _OPEN.match(text, match.end())
        end = _end_of_quoted(text, opened)[1] if opened else len(text)
        return not blank and before[-1:] in ("(", "[") and text[end : end + 20].lstrip()[:1] in (")", "]", "")

    def _clean_tables(self, text: str) -> str:
        """Return a text without the cells below or next to the name of a secret, in CSV and Markdown tables."""
        lines = text.split("\n")
        columns: set[int] = set()
        width, separator = 0, ""
        for number, line in enumerate(lines):
            if len(line) > MOST_ROW:
                continue
            if columns and line.count(separator) == width:
                lines[number] = self._clean_row(line, separator, columns)
                continue
            columns, (separator, cells) = set(), _split_row(line)
            names = _name_columns(cells)
            filled = [index for index, cell in enumerate(cells) if cell.strip()]
            if separator == "|" and len(filled) == 2 and names == {filled[0]}:
                # | api_key | value |
                lines[number] = self._clean_row(line, separator, {filled[1]})
            elif names and all(_NAME_CELL.fullmatch(cells[index]) for index in filled):
                columns, width = names, line.count(separator)
        return "\n".join(lines)

    def _clean_row(self, line: str, separator: str, columns: Collection[int]) -> str:
        cells = line.split(separator)
        for index in columns:
            value = cells[index].strip().strip("\"'`")
            if not _keeps(value) and value.strip("-: "):
                cells[index] = self._replaced(cells[index].replace(value, MARK), 0)[0]
        return separator.join(cells)

    def _entry(self, text: str, match: re.Match[str]) -> tuple[str, int] | None:
        return self._value(text, match.end(), match["name"]) if _is_secret(match["name"]) else None


def _walk(text: str, head: re.Pattern[str], take: Callable[[str, re.Match[str]], tuple[str, int] | None]) -> str:
    """Replace values by their heads; C(take) returns the replacement of a value, and the end of the value."""
    parts: list[str] = []
    done = 0
    match = head.search(text)
    while match:
        replaced, at = take(text, match), match.end()
        if replaced:
            parts += [text[done : match.end()], replaced[0]]
            done = at = max(replaced[1], at)
        match = head.search(text, at)
    return "".join([*parts, text[done:]])


def clean_environment(variables: Iterable[str]) -> list[str]:
    """Return NAME=VALUE lines without the values of secrets."""
    cleaned = []
    for line in variables:
        name, equals, value = line.partition("=")
        cleaned.append(f"{name}={MARK}" if equals and value and is_secret_variable(name.strip()) else line)
    return cleaned


def secrets_of_environment(variables: Iterable[str]) -> list[str]:
    """Return the values that C(clean_environment) removes, to remove them from other texts too."""
    pairs = (line.partition("=") for line in variables)
    values = (
        value.strip().strip("\"'") for name, equals, value in pairs if equals and is_secret_variable(name.strip())
    )
    return [value for value in values if value and not _HARMLESS.fullmatch(value) and not value.startswith("/")]


def secrets_of_account(account: Mapping[str, Any]) -> list[str]:
    """Return the secrets of an account of C(config.json) of Docker; C(auth) is user and password in base64."""
    secrets = [str(value) for key, value in account.items() if value and key not in ("email", "username")]
    with contextlib.suppress(ValueError):
        secrets.append(base64.b64decode(str(account.get("auth") or "")).decode().partition(":")[2])
    return [value for value in secrets if value]


def clean_inspect(text: str) -> str:
    """Return the JSON of C(docker inspect) without the secrets of its environments; empty for invalid JSON."""
    try:
        items = parse_json(text, "docker inspect")
    except ValueError:
        return ""
    for item in items if isinstance(items, list) else []:
        config = item.get("Config") if isinstance(item, Mapping) else None
        if isinstance(config, dict) and isinstance(config.get("Env"), list):
            config["Env"] = clean_environment(str(line) for line in config["Env"])
    return json.dumps(items, indent=1, sort_keys=True)
