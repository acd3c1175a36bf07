# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts from a CSV file, as a list of machines is kept by those who rack them."""

from __future__ import annotations

DOCUMENTATION = r"""
name: csv
short_description: Hosts from a CSV file
version_added: 0.1.0
description:
  - Makes a host of each row of a CSV file. The column C(host) names it, C(groups) puts it into groups, every other column is a
    variable of it by the name of the column.
  - The source is a small YAML file whose name ends in C(csv.yml) or C(csv.yaml), and which names the CSV file. C(group_vars) beside it
    are read, and the services of the fleet are written there as ever.
  - Name the YAML file by C(-i), not its folder; of a folder Ansible reads every file, and takes the lines of the CSV for hosts.
  - A CSV file can be the source itself where this plugin is among C(enable_plugins) of C(ansible.cfg), before C(ini).
options:
  plugin:
    description: The name of this plugin, so that a source is known for its own.
    type: str
    required: true
    choices: [dgxspark.vllm.csv]
  path:
    description: The CSV file, relative to the source.
    type: str
    required: true
  group:
    description: Group that all hosts are put into, beside those of their column C(groups). Empty for none.
    type: str
    default: sparks
  delimiter:
    description: What stands between columns. Spreadsheets of some languages write V(;).
    type: str
    default: ','
notes:
  - A cell of C(host) may be a range, as in other inventories of Ansible, C(spark-[001:100]). All its hosts then have the row's variables.
    A port behind it, C(spark-1:2222), is C(ansible_port).
  - An empty cell sets nothing. V(true) and V(false) are booleans, whole numbers without leading zeros are numbers, and what begins with
    C({) or C([) is read as JSON. All else is text.
  - Groups are separated by blanks.
  - Cells are no templates; what is worked out of other variables belongs into C(group_vars).
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
# my-fleet/fleet.csv.yml, used as: ansible-playbook -i my-fleet/fleet.csv.yml dgxspark.vllm.site
plugin: dgxspark.vllm.csv
path: fleet.csv

# my-fleet/fleet.csv:
# host,ansible_host,groups,rack
# spark-001,10.1.0.1,rack_a canary,a1
# spark-002,10.1.0.2,rack_a,a1
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin

DEFAULTS = {"group": "sparks", "delimiter": ","}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class InventoryModule(BaseInventoryPlugin):
    """Read the rows; every mistake names its line and column."""

    NAME = "dgxspark.vllm.csv"

    def verify_file(self, path: str) -> bool:
        """Take YAML files that are named for it, and CSV files with a column for hosts."""
        if not super().verify_file(path):
            return False
        if path.endswith(("csv.yml", "csv.yaml")):
            return True
        if not path.endswith(".csv"):
            return False
        with Path(path).open(encoding="utf-8-sig") as stream:
            return "host" in [column.strip() for column in stream.readline().split(",")]

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Fill the inventory."""
        super().parse(inventory, loader, path, cache)
        settings = dict(DEFAULTS)
        source = Path(path)
        if not path.endswith(".csv"):
            self._read_config_data(path)
            settings = {name: str(self.get_option(name) or "") for name in DEFAULTS}
            source = Path(path).parent / str(self.get_option("path"))
        try:
            with source.open(encoding="utf-8-sig", newline="") as stream:
                self._read(
                    csv.DictReader(stream, delimiter=settings["delimiter"] or ",", strict=True),
                    source,
                    settings["group"],
                )
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise AnsibleParserError(f"{source}: cannot be read as CSV: {error}") from error

    def _read(self, rows: csv.DictReader[str], source: Path, group: str) -> None:
        columns = [str(column).strip() for column in rows.fieldnames or []]
        rows.fieldnames = columns
        wrong = [column for column in columns if not NAME.fullmatch(column)]
        if "host" not in columns:
            raise AnsibleParserError(
                f"{source}: there is no column 'host'; the first line names the columns, and has {columns}"
            )
        if wrong or len(set(columns)) < len(columns):
            double = sorted({column for column in columns if columns.count(column) > 1})
            raise AnsibleParserError(
                f"{source}: columns {wrong or double} are no names of variables, or stand there twice"
            )
        seen: dict[str, int] = {}
        for row in rows:
            line = rows.line_num
            cells = {
                name: (cell or "").strip()
                for name, cell in row.items()
                if name is not None and not isinstance(cell, list)
            }
            if not any(cells.values()):
                continue
            if None in row:
                raise AnsibleParserError(
                    f"{source}, line {line}: it has more cells than there are columns; quote what has a comma"
                )
            if not cells["host"] or re.search(r"\s", cells["host"]):
                raise AnsibleParserError(
                    f"{source}, line {line}: column host is {cells['host']!r}, which is no name of a host"
                )
            hosts, port = self._expand_hostpattern(cells.pop("host"))
            groups = [name for name in [group, *cells.pop("groups", "").split()] if name]
            values = {
                name: value(cell, f"{source}, line {line}, column {name}") for name, cell in cells.items() if cell
            }
            if port:
                values.setdefault("ansible_port", port)
            for host in hosts:
                if host in seen:
                    raise AnsibleParserError(f"{source}, line {line}: {host} stands in line {seen[host]} already")
                seen[host] = line
                self._add(host, groups, values)

    def _add(self, host: str, groups: list[str], values: dict[str, Any]) -> None:
        self.inventory.add_host(host)
        for group in groups:
            self.inventory.add_child(self.inventory.add_group(group), host)
        for name, content in values.items():
            self.inventory.set_variable(host, name, content)


def value(cell: str, where: str) -> Any:
    """Read a cell: what is plainly no text, and text for all else."""
    if cell in ("true", "false"):
        return cell == "true"
    if re.fullmatch(r"0|-?[1-9]\d{0,17}", cell):
        return int(cell)
    if cell[0] in "{[":
        try:
            return json.loads(cell)
        except ValueError as error:
            raise AnsibleParserError(f"{where}: it begins like JSON and is none: {error}") from error
    return cell
