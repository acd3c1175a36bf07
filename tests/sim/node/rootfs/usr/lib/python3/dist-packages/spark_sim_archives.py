# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps the compiled code of archives: Ansible sends each module as one, with mostly the same files."""

import marshal
import os
import zipimport

FOLDER = "/var/cache/spark-sim/compiled"
# Private, and without a public way; it is a frozen module of each Python since 3.8.
compile_anew = zipimport._compile_source


def compile_source(path, source):
    """Return the code of a file of an archive, from the cache of an earlier process.

    :param path: of the file, with the path of the archive
    :param source: its bytes
    """
    # Programs that use no archive do without these.
    import _imp
    from pathlib import Path

    cached = Path(FOLDER, _imp.source_hash(len(source), path.rpartition(".zip")[2].encode() + source).hex())
    try:
        return marshal.loads(cached.read_bytes())
    except (OSError, EOFError, ValueError, TypeError):
        code = compile_anew(path, source)
    if os.geteuid() == 0:  # who is not root could leave something for root to run
        try:
            cached.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fresh = cached.with_suffix(f".{os.urandom(8).hex()}")  # nodes share the folder
            fresh.write_bytes(marshal.dumps(code))
            fresh.replace(cached)
        except OSError:  # a disk that a test has filled
            pass
    return code


zipimport._compile_source = compile_source
