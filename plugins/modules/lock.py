#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lock
short_description: Write the lock file
description:
  - Joins the images and models of the hosts of the play into the lock file, on the controller. Entries of other hosts stay
    unchanged; entries of services that have left the inventory are removed.
  - Fails, with all problems at once, if hosts have different builds of an image, different commits of a model or different bytes
    of a file, or if no host has an image or model of a service. Nothing is written then.
options:
  planned:
    description: RV(dgxspark.vllm.plan#module:hosts) of M(dgxspark.vllm.plan), made with O(dgxspark.vllm.plan#module:locked=false).
    type: dict
    required: true
  images_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spark_info) with V(images) on the hosts.
    type: str
    required: true
  models_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spark_info) with V(model_files) on the hosts.
    type: str
    required: true
  addons:
    description: RV(dgxspark.vllm.plan#module:addons) of the same plan; images of add-on services are locked, too.
    type: dict
    default: {}
  addons_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spark_info) with V(images) about those images.
    type: str
    default: ''
  dest:
    description: Lock file on the controller. C(spark_lock_file) of the hosts, else C(.spark/spark.lock.yml) in the inventory folder, when empty.
    type: str
    default: ''
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Write the lock file
  dgxspark.vllm.lock:
    planned: "{{ planned.hosts }}"
    images_from: asked_images
    models_from: asked_models
  run_once: true
"""

RETURN = r"""
dest:
  description: The lock file.
  returned: success
  type: str
  sample: /home/me/my-sparks/.spark/spark.lock.yml
changes:
  description: Changes of the lock file, one line each.
  returned: success
  type: list
  sample: ["model Qwen/Qwen3-8B@main: added 0123456789ab (12 files, 16.40 GB)"]
notes:
  description: Remarks, such as hosts that did not answer.
  returned: success
  type: list
  sample: ["spark-3 did not answer; its entries in the lock file stay."]
"""
