"""Write a wheel of a package that is named as Ray and can say its version: wheel.py FOLDER."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

VERSION = "9.9.9"
INFO = f"ray-{VERSION}.dist-info"
FILES = {
    "ray/__init__.py": f'__version__ = "{VERSION}"\n\n\ndef main():\n    print("ray, version", __version__)\n',
    f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: ray\nVersion: {VERSION}\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: molecule\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/entry_points.txt": "[console_scripts]\nray = ray:main\n",
}

folder = Path(sys.argv[1])
name = f"ray-{VERSION}-py3-none-any.whl"
with zipfile.ZipFile(folder / name, "w") as wheel:
    for path, text in FILES.items():
        wheel.writestr(path, text)
    wheel.writestr(f"{INFO}/RECORD", "".join(f"{path},,\n" for path in [*FILES, f"{INFO}/RECORD"]))
(folder / "index.html").write_text(f'<a href="{name}">{name}</a>\n')
