#!/bin/sh
# Runs in a container of the base image: put vLLM and Ray in place, start vLLM once on the scripted model, leave its byte code.
set -eu
cp -a /build/tree/. /usr/local/lib/python3.11/dist-packages/
cat > /usr/local/bin/vllm <<'PY'
#!/usr/bin/python3
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":  # worker processes import this file
    sys.exit(main())
PY
cat > /usr/local/bin/ray <<'PY'
#!/usr/bin/python3
import sys

from ray.scripts.scripts import main

if __name__ == "__main__":
    sys.exit(main())
PY
chmod 755 /usr/local/bin/vllm /usr/local/bin/ray
# The plugin, as pip would leave it.
packages=/usr/local/lib/python3.11/dist-packages
cp -a /build/realengine/vllm_cpu_ray $packages/
info=$packages/vllm_cpu_ray-1.dist-info
mkdir $info
printf 'Metadata-Version: 2.1\nName: vllm-cpu-ray\nVersion: 1\n' > $info/METADATA
printf '[vllm.platform_plugins]\ncpu_ray = vllm_cpu_ray:register\n' > $info/entry_points.txt
: > $info/RECORD
python3 - <<'PY'
import ray  # what was left out of it is not needed to start
import ray.autoscaler.v2.sdk, ray.scripts.scripts, ray.util.placement_group, ray.util.scheduling_strategies
PY
ray --version
export VLLM_CPU_CI_ENV=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1
vllm serve /build/scripted --host 127.0.0.1 --port 18765 --max-model-len 4096 --served-model-name warm > /tmp/warm.log 2>&1 &
pid=$!
python3 - "$pid" <<'PY' || { cat /tmp/warm.log; exit 1; }
import json, os, sys, time, urllib.request
pid, deadline = int(sys.argv[1]), time.monotonic() + 240
def get(path, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request("http://127.0.0.1:18765" + path, data, {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=60).read().decode()
while True:
    try:
        get("/health")
        break
    except OSError:
        os.kill(pid, 0)  # raises when vLLM is gone
        if time.monotonic() > deadline:
            sys.exit("vLLM did not become healthy within 240 s")
        time.sleep(0.3)
text = json.loads(get("/v1/completions", {"model": "warm", "prompt": "x", "max_tokens": 8}))["choices"][0]["text"]
assert "scripted test model" in text, text
print("answered:", text)
PY
kill "$pid"
wait "$pid" || true
rm -rf /tmp/*
