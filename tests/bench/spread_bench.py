"""Time what one simulated Spark of the running demo takes from the other, against a raw copy over the same cables.

The raw copy is one TCP connection that nobody encrypts, compares or resumes: the bound of the link. Both nodes and the controller share this
machine's cores, so what a rate costs in processor time counts here as it does not between two Sparks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sim"))

from simlib.config import SETS, Node

FROM, TO = (Node("demo", number).container for number in (1, 2))
TARGET = f"{SETS['demo'].subnet_prefix}.1.12"
REPO = "/srv/huggingface/hub/models--Org--Payload"
IMAGE, NEXT = "spread/payload:1", "spread/payload:2"
COPY = """
import socket, sys, time
if sys.argv[1] == "take":
    with socket.create_server((sys.argv[2], 8723)) as server, open("/root/raw", "wb") as target:
        connection, _peer = server.accept()
        while piece := connection.recv(4194304):
            target.write(piece)
else:
    began = time.monotonic()
    with socket.create_connection((sys.argv[2], 8723)) as connection:
        for path in sys.argv[3:]:
            with open(path, "rb") as source:
                connection.sendfile(source)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    print(time.monotonic() - began)
"""
MORE = f"docker create --name next {IMAGE} sh && docker cp /root/more next:/more && docker commit next {NEXT} && docker rm next"


def node(container: str, *argv: str, check: bool = True) -> str:
    """Run a command as root on a node; returns what it printed."""
    done = subprocess.run(["docker", "exec", container, *argv], text=True, capture_output=True, check=False)
    if check and done.returncode:
        sys.exit(f"{' '.join(argv)[:200]} failed on {container}: {done.stderr.strip()}; is the demo up (make demo)?")
    return done.stdout


def raw(paths: list[str]) -> float:
    """Seconds of the raw copy of some files."""
    with subprocess.Popen(["docker", "exec", TO, "python3", "-c", COPY, "take", TARGET]):
        time.sleep(1)
        seconds = float(node(FROM, "python3", "-c", COPY, "send", TARGET, *paths))
    node(TO, "rm", "/root/raw")
    return seconds


def spread(folder: Path, kind: str, **role_variables: Any) -> dict[str, Any]:
    """Run the role for one image or model; returns the result of its transfer."""
    state = folder / "state.json"
    tasks = [
        {"name": "Distribute", "ansible.builtin.import_role": {"name": "dgxspark.vllm.spread"}},
        {
            "name": "Keep what was sent",
            "ansible.builtin.copy": {"content": "{{ __spread_got.got | to_json }}", "dest": str(state)},
            "when": "__spread_got.got is defined",
            "delegate_to": "localhost",
            "become": False,
        },
    ]
    playbook = folder / "spread.yml"
    playbook.write_text(
        json.dumps([{"name": "Distribute", "hosts": "sparks", "become": True, "gather_facts": False, "tasks": tasks}]),
        encoding="utf-8",
    )
    variables = {"spread_kinds": [kind], "spread_fabric": "bench", "spread_reserve_gb": 1, **role_variables}
    argv = [
        str(ROOT / ".venv/bin/ansible-playbook"), "-i", str(ROOT / "inventories/demo"), "-e", json.dumps(variables), str(playbook)
    ]  # fmt: skip
    done = subprocess.run(
        argv, cwd=ROOT, text=True, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    if done.returncode:
        sys.exit(f"the role failed:\n{done.stdout[-5000:]}")
    (result,) = json.loads(state.read_text(encoding="utf-8")).values()
    return dict(result)


def payload(folder: Path, mib: int, image_mib: int) -> None:
    """Lay a model and an image on the first node, of so many MiB."""
    program = (ROOT / "molecule/spread/payload.py").read_text(encoding="utf-8")
    program = program.replace("8, 32 * 1024 * 1024", f"8, {mib // 8} * 1024 * 1024").replace(
        "48 * 1024", f"{image_mib} * 1024"
    )
    (folder / "payload.py").write_text(program, encoding="utf-8")
    subprocess.run(
        ["docker", "cp", str(folder / "payload.py"), f"{FROM}:/root/payload.py"], check=True, capture_output=True
    )
    node(FROM, "python3", "/root/payload.py", "/srv/huggingface", "/root/payload.tar")
    node(FROM, "docker", "import", "/root/payload.tar", IMAGE)
    node(FROM, "sh", "-c", "head -c 1048576 /dev/urandom > /root/more")


def forget() -> None:
    """Remove the model and the images from both nodes."""
    for container in (FROM, TO):
        node(container, "docker", "image", "rm", "--force", NEXT, IMAGE, check=False)
        node(
            container,
            "rm",
            "-rf",
            REPO,
            "/root/payload.tar",
            "/root/payload.py",
            "/root/more",
            "/var/lib/dgxspark/spread",
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--mib", type=int, default=4096, help="size of the model; small ones measure the start (default: %(default)s)"
    )
    parser.add_argument("--image-mib", type=int, default=1024, help="size of the image (default: %(default)s)")
    options = parser.parse_args()
    size, image_size = options.mib * 2**20, options.image_mib * 2**20
    rows: list[tuple[str, int, float]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        try:
            payload(folder, options.mib, options.image_mib)
            shards = node(FROM, "find", f"{REPO}/blobs", "-type", "f", "-size", "+1M").split()
            rows.append(("raw copy, one connection, one rail", size, raw(shards)))
            model = {
                "repo": "Org/Payload",
                "revision": "main",
                "only": [],
                "image": "vllm/vllm-openai:v0.24.0-ubuntu2404",
                "link": "",
            }
            for encrypted in (False, True):
                sent = spread(folder, "models", spread_models=[model], spread_encrypt_fabric=encrypted)
                if (sent["link"], sent["encrypted"]) != ("fabric", encrypted):
                    sys.exit(f"the model came otherwise than it was to: {sent}")
                label = "model, fabric, verified" + (", encrypted" if encrypted else "")
                rows.append((label, sent["bytes"], sent["seconds"]))
                node(TO, "rm", "-rf", REPO)
                # Before and after each, since the disk below both writes now as fast and then half as fast.
                rows.append(("raw copy, again", size, raw(shards)))
            began = time.monotonic()
            node(FROM, "sh", "-c", f"docker save {IMAGE} > /dev/null")
            rows.append(("docker save alone, of the image", image_size, time.monotonic() - began))
            sent = spread(folder, "images", spread_images=[IMAGE])
            rows.append((f"image, {sent['link']}, saved and loaded", sent["bytes"], sent["seconds"]))
            node(FROM, "sh", "-c", MORE)
            sent = spread(folder, "images", spread_images=[NEXT])
            rows.append(("image with 1 MiB more on top", sent["bytes"], sent["seconds"]))
        finally:
            forget()
    copies = [count / seconds for label, count, seconds in rows if label.startswith("raw copy")]
    bound = sum(copies) / len(copies)
    print("of raw: of the mean of the raw copies")
    print(f"{'':<42}{'MB':>8}{'s':>8}{'MB/s':>8}{'of raw':>8}")
    for label, count, seconds in rows:
        print(f"{label:<42}{count / 1e6:8.0f}{seconds:8.1f}{count / seconds / 1e6:8.0f}{count / seconds / bound:8.2f}")


if __name__ == "__main__":
    main()
