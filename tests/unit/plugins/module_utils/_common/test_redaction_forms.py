# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets in the forms in which logs, configuration files and shell histories hold them.

In each text the secret stands between « and »; the marks are removed before the text is cleaned. Values are made up
by repeating a seed, so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import redaction, secret_rules


def random_text(length: int, alphabet: str = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789") -> str:
    """Return letters and digits that look random and are the same each time."""
    state, letters = 7, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % 2**31
        letters.append(alphabet[(state >> 16) % len(alphabet)])
    return "".join(letters)


HEX, UPPER, DIGITS = "0123456789abcdef", "ABCDEFGHJKLMNPQRSTUVWXYZ234567", "123456789"


def hexa(length: int) -> str:
    return random_text(length, HEX)


X12, X16, X20, X24, X32, X36, X40, X64 = (random_text(length) for length in (12, 16, 20, 24, 32, 36, 40, 64))
B64 = random_text(43) + "="

TOKENS = [
    f"pypi-AgEIcHlwaS5vcmc{random_text(80)}",
    f"pypi-{X36}",
    f"glsa_{X32}_{hexa(8)}",
    f"glc_{X40}",
    f"AGE-SECRET-KEY-1{random_text(58, 'QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L')}",
    f"AGE-SECRET-KEY-PQ-1{random_text(60, UPPER)}",
    f"hvs.{random_text(95)}",
    f"hvs.{X24}",
    f"hvb.{random_text(150)}",
    f"SG.{X20}.{X40}",
    f"SK{hexa(32)}",
    f"GOCSPX-{random_text(28)}",
    f"dckr_pat_{random_text(27)}",
    f"whsec_{X32}",
    f"sbp_{hexa(40)}",
    f"ntn_{random_text(11, DIGITS)}{random_text(35)}",
    f"figd_{X40}",
    f"sntrys_{X64}",
    f"lin_api_{X40}",
    f"shpat_{hexa(32)}",
    f"sq0atp-{random_text(22)}",
    f"PMAK-{hexa(24)}-{hexa(34)}",
    f"NRAK-{random_text(27, UPPER)}",
    f"rubygems_{hexa(48)}",
    f"AKCp{random_text(69)}",
    f"ATATT3{random_text(186)}",
    f"glrt-{X20}",
    f"gldt-{X20}",
    f"dapi{hexa(32)}",
    f"xapp-1-A{random_text(10, UPPER)}-{random_text(13, DIGITS)}-{hexa(64)}",
    f"ops_eyJ{random_text(260)}",
    f"rdme_{random_text(70, HEX)}",
    f"tfp_{random_text(44)}_{random_text(14)}",
    f"pul-{hexa(40)}",
    f"dp.pt.{random_text(43)}",
    f"EZAK{random_text(54)}",
    f"FLWSECK_TEST-{random_text(32, 'abcdefgh0123456789')}-X",
    f"doo_v1_{hexa(64)}",
    f"hf_{random_text(34, 'abcdefghijklmnopqrstuvwxyz')}",
    f"hf_{random_text(34)}",
    f"nvapi-{X64}",
    f"gsk_{X40}",
    f"r8_{X36}",
    f"xai-{X64}",
    f"sk-ant-api03-{random_text(93)}AA",
    f"sk-proj-{X64}",
    f"sk-or-v1-{hexa(64)}",
    f"ghp_{X36}",
    f"github_pat_{random_text(82)}",
    f"glpat-{X20}",
    f"xoxb-{random_text(11, DIGITS)}-{X24}",
    f"AKIA{random_text(16, UPPER)}",
    f"AIza{random_text(35)}",
    f"tskey-auth-{X24}",
    f"ya29.{X40}",
    f"eyJhbGciOiJIUzI1NiJ9.eyJ{X24}.{X40}",
    f"{random_text(9, DIGITS)}:AA{random_text(33)}",
    f"api_org_{random_text(34, 'abcdefghijklmnopqrstuvwxyz')}",
    f"fo1_{random_text(43)}",
    f"sha256~{random_text(43)}",
]
IN_TEXTS = ["token {} was refused", '{{"value": "{}"}}', "line one\\n{}\\nline two", "X={};", "({})", "https://h/?x={}"]

FORMS = [
    # files
    f"db.lan:5432:models:vllm:«{X12}»",
    f"*:*:*:postgres:«{X16}»",
    f"localhost:5432:*:me@lan:«{X16}»\nother:5432:a:b:«{X20}»",
    f"machine huggingface.co login me password «{X16}»",
    f"machine h\n  login me\n  password «{X16}»",
    f"root:«$6$saltsalt${random_text(86)}»:19000:0:99999:7:::",
    f"spark:«$y$j9T${random_text(22)}${random_text(43)}»:19000:0:99999:7:::",
    f"admin:«$apr1${random_text(8)}${random_text(22)}»",
    f"admin:«$2y$05${random_text(53)}»",
    f"admin:«{{SHA}}{random_text(27)}=»",
    f"admin:«$argon2id$v=19$m=65536,t=3,p=4${random_text(22)}${random_text(43)}»",
    f"[Peer]\nPublicKey = {random_text(43, UPPER)}=\nPresharedKey = «{B64}»",
    f"[Interface]\nPrivateKey = «{B64}»",
    f"PrivateKey=«{B64}»\nListenPort=51820",
    f"$ANSIBLE_VAULT;1.1;AES256\n«{hexa(80)}»\n«{hexa(40)}»\n",
    f"key: !vault |\n    $ANSIBLE_VAULT;1.2;AES256;prod\n    «{hexa(80)}»\n    «{hexa(62)}»\n",
    f'"$ANSIBLE_VAULT;1.1;AES256\\n«{hexa(80)}»\\n«{hexa(20)}»"',
    f"[default]\naws_access_key_id = «AKIA{random_text(16, UPPER)}»\naws_secret_access_key = «{X40}»",
    f"//registry.example/:_authToken=«{X36}»",
    f"_auth=«{X20}==»",
    f"[server-login]\nusername: me\npassword: «{X16}»",
    f"machine:\n  auth:\n    token: «{X24}»",
    f"apiVersion: v1\nkind: Config\nusers:\n- name: me\n  user:\n    token: «{X40}»\n    client-key-data: «{X64}»",
    f'network={{\n  ssid="lab"\n  psk="«{X12}»"\n}}',
    f"wpa_psk=«{hexa(64)}»",
    f"redis: requirepass «{X16}»".replace("redis: ", ""),
    f"masterauth «{X16}»",
    # commands
    f"sshpass -p «{X12}» ssh spark@10.0.0.1",
    f"sshpass -p'«{X12}»' ssh spark@10.0.0.1",
    f"sshpass -v -p «{X12}» scp a b",
    f"SSHPASS=«{X12}» sshpass -e ssh h",
    f"mysql -u root -p«{X12}» models",
    f"mysqldump -h h -uroot -p'«{X12}»' models",
    f"mariadb-dump -p«{X12}» models",
    f"docker login -u me -p «{X16}» registry.lan",
    f"docker login registry.lan -u me -p «{X16}»",
    f"docker login --username me --password «{X16}»",
    f"podman login -p «{X16}» -u me quay.io",
    f"helm registry login h -u me -p «{X16}»",
    f"wandb login «{hexa(40)}»",
    f"wandb login --relogin «{hexa(40)}»",
    f"huggingface-cli login --token «{X36}»",
    f"hf auth login «{X36}»",
    f"vault login «{X24}»",
    f"redis-cli -h h -a «{X12}» ping",
    f"ldapsearch -D cn=x -w «{X12}» -b dc=x",
    f"smbclient //h/s -U me%«{X12}»",
    f"htpasswd -bB /etc/htpasswd admin «{X12}»",
    f"htpasswd -cb file admin «{X12}»",
    f"7z x a.7z -p«{X12}»",
    f"unzip -P «{X12}» a.zip",
    f"openssl rsa -in k -passin pass:«{X12}»",
    f"openssl enc -aes256 -pass pass:«{X12}» -in x",
    f"echo «{X12}» | sudo -S apt update",
    f"echo '«{X12}»' | sudo -k -S ls",
    f"echo 'spark:«{X12}»' | sudo chpasswd",
    f"ipmitool -H h -U admin -P «{X12}» power status",
    f"nmcli con modify lab wifi-sec.psk «{X12}»",
    f"curl -u admin:«{X12}» http://h/",
    f"curl --user 'admin:«{X12}»' http://h/",
    f"curl -H 'X-Api-Key: «{X24}»' http://h/",
    f"curl -H 'Authorization: Token «{X24}»' http://h/",
    f"wget --http-password=«{X12}» http://h/",
    f"git clone https://oauth2:«{X20}»@gitlab.lan/x.git",
    f"git clone https://«{X40}»@github.com/x/y.git",
    f"psql postgresql://me:«{X12}»@db:5432/x",
    f"mongodb+srv://me:«{X12}»@cluster/x",
    f"amqp://me:«{X12}»@mq//",
    f"rsync rsync://me:«{X12}»@h/x",
    f"PGPASSWORD=«{X12}» psql -h h",
    f"export RESTIC_PASSWORD='«{X12}»'",
    f"restic --password «{X12}» backup",
    f"docker run -e NGC_API_KEY=«{X40}» -e A=b image",
    f"docker run --env=HF_TOKEN=«{X36}» image",
    f"kubectl create secret generic hf --from-literal=token=«{X36}»",
    f"vllm serve m --api-key «{X24}» --port 8000",
    f"vllm serve m --ssl-keyfile-password «{X12}»",
    f"ansible-playbook site.yml -e ansible_become_password=«{X12}»",
    f"ansible_ssh_pass: «{X12}»",
    f"ansible_become_pass=«{X12}» ansible_user=spark",
    # processes, as /proc shows them
    f"python3\0-m\0vllm\0serve\0--api-key\0«{X24}»\0--port\08000\0",
    f"HOME=/root\0HF_TOKEN=«{X36}»\0PATH=/bin\0",
    f"sshpass\0-p\0«{X12}»\0ssh\0h\0",
    # terminals
    f"\x1b[32mapi_key=\x1b[0m«{X24}»",
    f"api_key\x1b[1m=\x1b[31m«{X24}»\x1b[0m",
    f"\\u001b[33mpassword\\u001b[0m: «{X12}»",
    f"pass\u200bword: «{X12}»",
    f"\u202eapi_key=«{X24}»",
    # other writing
    f"api_key：«{X24}»",
    f"パスワード password：«{X12}»",
    f"api_key＝«{X24}»",
    "pin: «4711»",
    "PIN=«482913»",
    "pin code is «482913»",
    f"ntfy topic: «{X16}»",
    f"ntfy_topic=«{X16}»",
    f"https://ntfy.sh/«{X16}»",
    f"curl -d hi ntfy.sh/«{X16}»",
    f"https://contoso.webhook.office.com/«webhookb2/{hexa(8)}-{hexa(4)}@{hexa(8)}/IncomingWebhook/{hexa(32)}/{hexa(8)}»",
    f"https://prod-1.westeurope.logic.azure.com:443«/workflows/{hexa(32)}/triggers/manual/paths/invoke?sig={X40}»",
    f"teams_webhook_url: https://x.example/«{X40}»",
    f"https://discord.com/api/webhooks/«{random_text(18, DIGITS)}/{X64}»",
    f"https://hooks.slack.com/«services/T{random_text(8, UPPER)}/B{random_text(8, UPPER)}/{X24}»",
    f"https://h/x?X-Amz-Credential=a&X-Amz-Signature=«{hexa(64)}»",
    f"https://account.blob.core.windows.net/c?sv=2024&sig=«{X40}%3D»",
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey=«{X64}==»;EndpointSuffix=x",
    # tables
    f"| name | api_key |\n|---|---|\n| heavy | «{X24}» |\n| fast | «{X20}» |",
    f"| api_key | «{X24}» |",
    f"| **password** | `«{X12}»` |",
    f"user,password,role\nanna,«{X12}»,admin\nbob,«{X16}»,user",
    f"user;password\nanna;«{X12}»",
    f"user\tapi_key\tn\nanna\t«{X24}»\t1",
    f'"user","api_key"\r\n"anna","«{X24}»"\r',
    # sentences and structures
    f"The password is «{X12}».",
    f"Incorrect API key provided: «{X24}».",
    f"login failed for user x with password '«{X12}»'",
    f"api_key = SecretStr('«{X24}»')",
    f"Namespace(api_key=['«{X24}»'], port=1)",
    f"headers: {{'authorization': 'Bearer «{X24}»'}}",
    f"b'authorization', b'Bearer «{X24}»'",
    f"<api_key>«{X24}»</api_key>",
    f'{{"name":"HF_TOKEN","value":"«{X36}»"}}',
    f'{{\\"api_key\\":\\"«{X24}»\\"}}',
    f"Set-Cookie: session=«{X24}»; HttpOnly",
    f"Cookie: a=«{X24}»; b=«{X20}»",
    f"Proxy-Authorization: Basic «{X24}=»",
    f"authorization: Negotiate «{X64}»",
    f"auth_token:«{X24}»",
    f"access-token=>«{X24}»",
    f"secret_key := «{X24}»",
    f"SECRET_KEY_BASE=«{X64}»",
    f"DJANGO_SECRET_KEY='«{X40}»'",
    f"JWT_SECRET=«{X32}»",
    f"LITELLM_MASTER_KEY=«{X24}»",
    f"LITELLM_SALT_KEY=«{X24}»",
    f"WEBUI_SECRET_KEY=«{X24}»",
    f"GF_SECURITY_ADMIN_PASSWORD=«{X12}»",
    f"MINIO_ROOT_PASSWORD=«{X12}»",
    f"AWS_SESSION_TOKEN=«{X64}»",
    f"AZURE_CLIENT_SECRET=«{X36}»",
    f"K3S_TOKEN=K10«{hexa(64)}»".replace("K10«", "«K10"),
    f"RAY_AUTH_TOKEN=«{X32}»",
    f"VLLM_API_KEY=«{X24}»",
    f"smtp_auth_password: '«{X12}»'",
    f"basic_auth:\n  username: x\n  password: «{X12}»",
    f"bearer_token: «{X24}»",
    f"credentials: «{X24}»",
    f"recovery_key: «{X24}»",
    f"join_key=«{X24}»",
    f"pre_shared_key: «{X24}»",
    f"passphrase: correct horse «{X12}»",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n«{X64}»\n-----END OPENSSH PRIVATE KEY-----",
    f"-----BEGIN ENCRYPTED PRIVATE KEY-----\\n«{X64}»\\n-----END ENCRYPTED PRIVATE KEY-----",
    f"-----BEGIN EC PRIVATE KEY-----\n«{X64}» cut off",
]


def leaked(text: str) -> tuple[list[str], str]:
    """Return the secrets of a marked text that a cleaned text still holds, and the cleaned text."""
    cleaned = redaction.Redactor([]).clean(text.replace("«", "").replace("»", ""))
    return [secret for secret in re.findall("«(.*?)»", text, re.DOTALL) if secret in cleaned], cleaned


@pytest.mark.parametrize("text", FORMS)
def test_secret_in_this_form_is_redacted(text: str) -> None:
    assert "«" in text
    secrets, cleaned = leaked(text)
    assert not secrets, cleaned
    assert redaction.MARK in cleaned


@pytest.mark.parametrize("token", TOKENS)
def test_token_is_redacted_wherever_it_is(token: str) -> None:
    for form in IN_TEXTS:
        secrets, cleaned = leaked(form.format(f"«{token}»"))
        assert not secrets, cleaned


@pytest.mark.parametrize("token", TOKENS)
def test_inventory_may_not_hold_this_token(token: str) -> None:
    assert redaction.holds_secret(token)


def test_there_are_more_than_two_hundred_forms() -> None:
    assert len(FORMS) + len(TOKENS) >= 207


@pytest.mark.parametrize(
    "text",
    [
        "mysql -p models",
        "docker login registry.lan",
        "docker login --password-stdin -u me",
        "ssh -p 2222 spark@h",
        "pins: {heavy: pinned}, pin: true",
        "10.0.0.1:8000:10.0.0.2:9000 connected",
        "nvcr.io/nvidia/vllm:26.04-py3",
        "sha256:" + "ab" * 32,
        "model,prompt_tokens,max_tokens\nheavy,4096,65536\nfast,12,34",
        "| model | tokens per second |\n|---|---|\n| heavy | 41.2 |",
        "| service | api_key_file |\n|---|---|\n| heavy | /etc/dgxspark/secrets/heavy |",
        "user,password\n",
        "wandb login",
        "echo hello | sudo tee /x",
        "PublicKey = kept",
        "SKU 12 of SKYNET",
        "hvac is on, SG. is a country",
        "git commit 9c7af9bceb1e954e9c7af9bceb1e954e9c7af9bc",
        "zip -r a.zip -P",
    ],
)
def test_text_without_a_secret_is_unchanged(text: str) -> None:
    assert redaction.Redactor([]).clean(text) == text


PIECES = [
    "eyJ-", "eyJ_a", "eyJaaaaaaaa.", "a:1:b:c:", "$6$", "| api_key ", "api_key,", "login -p ", "mysql ", "docker login ", "sshpass ",
    "echo a ", "pin: ", "$ANSIBLE_VAULT;1.1;AES256\n", "\x1b[", "\x1b]", "ntfy ", "pypi-", "SG.a", "login a password ", "htpasswd -b ",
]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_repeated_beginnings_take_linear_time(piece: str, deadline: None) -> None:
    assert redaction.Redactor([]).clean(piece * (200_000 // len(piece))) is not None


@pytest.mark.parametrize(("keywords", "pattern"), secret_rules.RULES)
def test_vendor_rules_take_linear_time(keywords: tuple[str, ...], pattern: str, deadline: None) -> None:
    for piece in {form for word in keywords for form in (word, word.upper(), f"{word}a-")}:
        re.sub(pattern, "", piece * (200_000 // len(piece)))


@pytest.fixture
def deadline() -> Iterator[None]:
    """A quadratic expression takes an hour for these texts, a linear one a second or two: the alarm has a wide margin."""
    previous = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(180)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def raise_timeout(_signal: int, _frame: object) -> None:
    raise TimeoutError("cleaning 200 KB took over three minutes")
