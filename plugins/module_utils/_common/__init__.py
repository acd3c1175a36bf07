# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Foundations of every other package without knowledge of vLLM or hosts: findings, checks of input, secrets, tables, text.

Anybody may import it; it imports none of the others.
It never runs a program, opens a socket or reads a clock.
"""
