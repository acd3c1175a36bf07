#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask registries and the hub what tags and branches point to now."""

from __future__ import annotations

DOCUMENTATION = r"""
module: upstream_info
short_description: Ask registries and the hub what tags and branches point to now
version_added: 0.1.0
description:
  - Asks for the digest of each tag and for the commit of each branch, all at once. Nothing is fetched.
  - Asks without an account. A registry that wants one, a gated model, and whoever does not answer in time are named in RV(unknown); the
    module never fails because of them.
options:
  images:
    description: References of images, by tag.
    type: list
    elements: str
    default: []
  models:
    description: Models on the hub; C(repo) and C(revision).
    type: list
    elements: dict
    default: []
  endpoint:
    description: Address of a mirror of the hub.
    type: str
    default: ''
  timeout:
    description: Seconds that each of them is given.
    type: float
    default: 5
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.lock
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Look up tags and branches upstream
  dgxspark.vllm.upstream_info:
    images: ["vllm/vllm-openai:nightly"]
    models: [{repo: Qwen/Qwen3-8B, revision: main}]
  register: upstream
"""

RETURN = r"""
images:
  description: The digest of each tag that a registry named.
  returned: success
  type: dict
  sample: {"vllm/vllm-openai:nightly": "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
models:
  description: The commit of each model, by ORG/NAME@REVISION, that the hub named.
  returned: success
  type: dict
  sample: {"Qwen/Qwen3-8B@main": 0123456789abcdef0123456789abcdef01234567}
unknown:
  description: Who could not be asked, and why.
  returned: success
  type: list
  elements: str
  sample: ["example.org/own:main: example.org answered 401"]
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import hub_access, upstream
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import http_client

AT_ONCE = 16


def head(url: str, headers: dict[str, str], timeout: float) -> tuple[int, dict[str, str]]:
    """Ask for the headers of an address; a redirect is an answer, too.

    :param url: the address
    :param headers: of the request
    :param timeout: seconds
    :returns: status and headers
    """
    reply = http_client.fetch(url, "HEAD", headers, timeout=timeout, proxies=True)
    return reply.status, reply.headers


def ask_registry(ref: str, timeout: float) -> tuple[str | None, str]:
    """Return the digest of a tag, or why it is not known."""
    url, headers = upstream.manifest_url(ref), {"Accept": upstream.ACCEPT}
    try:
        status, found = head(url, headers, timeout)
        if status == 401:
            challenge = next((value for name, value in found.items() if name.lower() == "www-authenticate"), "")
            where = upstream.token_url(challenge, ref)
            said = (
                parse_json(http_client.fetch(where, timeout=timeout, proxies=True).body, urlsplit(where).netloc)
                if where
                else {}
            )
            token = said.get("token") or said.get("access_token")
            if token:
                status, found = head(url, {**headers, "Authorization": f"Bearer {token}"}, timeout)
    except (OSError, ValueError, AttributeError) as error:
        return None, f"{ref}: {urlsplit(url).netloc}: {getattr(error, 'reason', error)}"
    digest = upstream.digest_in(found) if status == 200 else None
    return digest, "" if digest else f"{ref}: {urlsplit(url).netloc} answered {status}"


def ask_hub(model: dict[str, Any], endpoint: str, timeout: float) -> tuple[str | None, str]:
    """Return the commit of a branch.

    :param model: its repository and revision
    :param endpoint: address of the hub
    :param timeout: seconds
    :returns: the commit, or None and why it is not known
    """
    repo, revision = str(model["repo"]), str(model.get("revision") or "main")
    url = hub_access.url_of(endpoint, repo, revision)
    try:
        status, found = head(url, {}, timeout)
    except (OSError, ValueError) as error:
        return None, f"{repo}@{revision}: {urlsplit(url).netloc}: {getattr(error, 'reason', error)}"
    commit = upstream.commit_in(found)
    return commit, "" if commit else f"{repo}@{revision}: {urlsplit(url).netloc} answered {status}"


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "images": {"type": "list", "elements": "str", "default": []},
            "models": {"type": "list", "elements": "dict", "default": []},
            "endpoint": {"type": "str", "default": ""},
            "timeout": {"type": "float", "default": 5},
        },
        supports_check_mode=True,
    )
    params = module.params
    refs = list(dict.fromkeys(params["images"]))
    models = {f"{model.get('repo')}@{model.get('revision') or 'main'}": model for model in params["models"]}
    nameless = [model for model in models.values() if not model.get("repo")]
    if nameless:
        module.fail_json(msg=f"models: every entry needs 'repo', ORG/NAME; {nameless[0]!r} has none")
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        digests = pool.map(lambda ref: ask_registry(ref, params["timeout"]), refs)
        commits = pool.map(lambda model: ask_hub(model, params["endpoint"], params["timeout"]), models.values())
        images, hubs = dict(zip(refs, digests)), dict(zip(models, commits))
    module.exit_json(
        changed=False,
        images={name: found for name, (found, _why) in images.items() if found},
        models={name: found for name, (found, _why) in hubs.items() if found},
        unknown=[why for _found, why in (*images.values(), *hubs.values()) if why],
    )


if __name__ == "__main__":
    main()
