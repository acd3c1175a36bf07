# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Not vLLM: the stand-in's answer to `import vllm; vllm.__version__`."""

import json
from pathlib import Path

__version__ = json.loads(Path("/opt/vllm-sim/image.json").read_text())["version"]
