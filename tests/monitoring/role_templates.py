"""The templates of the role monitoring, filled in as the role does it, without a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from ansible.plugins.filter.core import FilterModule

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "roles/monitoring/templates"


def template(name: str, **variables: Any) -> str:
    """Return a template of the role with Ansible's own filters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    # Those of Jinja that Ansible has its own version of want Ansible's templar around them.
    ansible = FilterModule().filters()
    environment.filters.update({name: ansible[name] for name in ("comment", "regex_replace", "to_json")})
    return environment.get_template(name).render(**variables)
