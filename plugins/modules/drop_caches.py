#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: drop_caches
short_description: Drop the page cache of a Spark before a model is loaded
version_added: 0.1.0
description:
  - Writes dirty pages to disk and drops page cache, dentries and inodes, like C(sync; echo 3 > /proc/sys/vm/drop_caches).
  - On GB10 the page cache lies in the same memory as the GPU's allocations, and the driver allocates from C(MemFree). After
    a copy of weights most of that can be cache.
  - Units of services do the same before each start; this module is for playbooks.
author:
  - dgxspark.vllm contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: none
  idempotent:
    support: partial
    details:
      - Nothing happens while the page cache is smaller than O(threshold_gib). Files that are read in between fill it again.
options:
  root:
    description:
      - Where C(/proc) is found. Simulated Sparks show their own there.
    type: path
    default: /
  threshold_gib:
    description:
      - Do nothing when page cache, buffers and reclaimable slab together are smaller than this.
    type: float
    default: 1.0
notes:
  - Needs root.
"""

EXAMPLES = r"""
- name: Give the page cache back when it is large
  dgxspark.vllm.drop_caches:
    threshold_gib: 4
  become: true
"""

RETURN = r"""
freed_mib:
  description: By how much MemFree grew. In check mode, the size of the page cache that would be dropped.
  returned: success
  type: int
  sample: 12544
before:
  description: C(available_gib), C(free_gib) and C(page_cache_gib) before.
  returned: success
  type: dict
  sample: {"available_gib": 115.85, "free_gib": 103.25, "page_cache_gib": 12.64}
after:
  description: The same afterwards. In check mode equal to RV(before).
  returned: success
  type: dict
  sample: {"available_gib": 115.87, "free_gib": 115.5, "page_cache_gib": 0.41}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import hostmem


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "threshold_gib": {"type": "float", "default": 1.0},
        },
        supports_check_mode=True,
    )
    root, threshold = module.params["root"], module.params["threshold_gib"]
    if threshold < 0:
        module.fail_json(msg=f"threshold_gib is {threshold:g}, a size cannot be negative; give 0 to drop always")
    try:
        if module.check_mode:
            now = hostmem.summary(hostmem.read_meminfo(root))
            large = now["page_cache_gib"] >= threshold
            freed = int(now["page_cache_gib"] * 1024) if large else 0
            module.exit_json(changed=large, freed_mib=freed, before=now, after=now)
        result = hostmem.drop_caches(root, threshold)
    except PermissionError as error:
        module.fail_json(msg=f"{error.filename}: permission denied; dropping the page cache needs root (become: true)")
    except OSError as error:
        module.fail_json(msg=f"the page cache cannot be dropped: {error}")
    module.exit_json(
        changed=result["dropped"], freed_mib=result["freed_mib"], before=result["before"], after=result["after"]
    )


if __name__ == "__main__":
    main()
