# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack the stand-ins that hosts get as archives: pack.py FOLDER. The same inputs make the same bytes.

nvidia_gpu_exporter.tar.gz, .sha256   as a release of nvidia_gpu_exporter, with the sum that is compared
wheels/, hermes.txt                   the Hermes agent as a package, and the list of packages that names it
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path

import yaml

SIM_DIR = Path(__file__).resolve().parent
VERSION = "0.19.0"
NAME = "hermes_agent"


def exporter(folder: Path) -> None:
    """Pack the exporter as its release is packed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        program = (SIM_DIR / "gpu_exporter" / "nvidia_gpu_exporter").read_bytes()
        for name, mode, content in (("LICENSE", 0o644, b"A stand-in.\n"), ("nvidia_gpu_exporter", 0o755, program)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    archive = gzip.compress(packed.getvalue(), mtime=0)
    (folder / "nvidia_gpu_exporter.tar.gz").write_bytes(archive)
    (folder / "nvidia_gpu_exporter.sha256").write_text(hashlib.sha256(archive).hexdigest() + "\n", encoding="utf-8")


def hermes(folder: Path) -> None:
    """Write the wheel. It reads its settings with PyYAML as the real one does, and brings it along: no index is asked."""
    info = f"{NAME}-{VERSION}.dist-info"
    files = {"hermes_standin.py": (SIM_DIR / "hermes" / "hermes_standin.py").read_bytes()}
    files |= {f"yaml/{path.name}": path.read_bytes() for path in sorted(Path(yaml.__file__).parent.glob("*.py"))}
    files |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: hermes-agent\nVersion: {VERSION}\nSummary: A stand-in.\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: pack.py\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\nhermes = hermes_standin:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]).encode()
    wheels = folder / "wheels"
    wheels.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheels / f"{NAME}-{VERSION}-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(zipfile.ZipInfo(name), content)
    (folder / "hermes.txt").write_text(f"hermes-agent=={VERSION}\n", encoding="utf-8")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    exporter(place)
    hermes(place)
