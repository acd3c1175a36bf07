# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of an inventory: every variable that a person writes, and the extra variables of playbooks."""

from __future__ import annotations

from .schema import NUMBER, Key

VARIABLES: dict[str, Key] = {
    "spark_services": Key(list, [], "services of the host: [keys](#keys-of-a-service)"),
    "spark_defaults": Key(
        dict, {}, "settings for all services of the host, such as `args`, `env`, `image`, `api_key_file`"
    ),
    "spark_recipe_dirs": Key(list, [], "folders with recipes, on the controller; later ones win"),
    "spark_recipe_sources": Key(
        list,
        [],
        "recipes of other projects, for `recipe: SOURCE:NAME`",
        page="importing.md#recipes-by-reference",
    ),
    "spark_model_dir": Key(str, "", "folder for relative `model.path`; default: the inventory folder"),
    "spark_management_address": Key(str, "", "address for other hosts; default: read from the host"),
    "spark_listen": Key(str, "", "address of all engines of the host"),
    "spark_hf_home": Key(str, "/srv/huggingface", "HF_HOME on the host; no colon, comma, double quote"),
    "spark_cache_dir": Key(
        str,
        "/var/cache/dgxspark",
        "compile and JIT caches on the host; no colon, comma, double quote",
    ),
    "spark_hf_token_file": Key(str, "", "file with a Hugging Face token, for gated models"),
    "spark_registries": Key(list, [], "registry accounts of Docker", page="inventory.md#registries"),
    "spark_hf_endpoint": Key(
        str,
        "",
        "Hugging Face mirror, `https://...` without login and parameters",
    ),
    "spark_gpu_args": Key(list, ["--gpus", "all"], "options of docker run for the GPU"),
    # nofile: Docker's 1024 is too few for NCCL over several hosts; 65536 is also what the API server of vLLM asks for.
    "spark_ulimits": Key(list, ["memlock=-1", "stack=67108864", "nofile=65536"], "ulimits of the engines' containers"),
    "spark_shm_size": Key(
        str,
        "8g",
        "largest private /dev/shm of an engine; `kv-offloading-size` raises it",
    ),
    "spark_docker_args": Key(list, [], "further options of docker run for all engines"),
    "spark_sysroot": Key(str, "/", "root of /proc and /sys; for simulated hosts"),
    "spark_total_gib": Key(
        NUMBER, None, "total memory as CUDA reports it, GiB; default: measured, else 119.67", least=0, unit="GiB"
    ),
    "spark_os_reserve_gib": Key(NUMBER, 5.2, "memory outside the services, GiB", least=0, unit="GiB"),
    "spark_safety_margin_gib": Key(NUMBER, 2.0, "memory kept free besides, GiB", least=0, unit="GiB"),
    "spark_overheads": Key(dict, {}, "overheads of an engine, see the module memory_budget"),
    "spark_sidecars": Key(list, [], "other programs that need memory: `name`, `memory_gib`"),
    "spark_image_catalogue": Key(list, [], "entries for the image catalogue"),
    "spark_ignore_rules": Key(list, [], "ids of rules to ignore"),
    "spark_autofix": Key(bool, False, "apply corrections that keep the meaning of a launch"),
    "spark_plan_facts": Key(
        str,
        "auto",
        "facts of hosts in the plan: auto, never or required; plan.yml reads them only if set by -e",
        choices=("auto", "never", "required"),
    ),
    "spark_probe": Key(
        str,
        "auto",
        "who asks an image about an unknown model: auto (a Spark with it), controller (its Docker) or none",
        choices=("auto", "controller", "none"),
        page="memory.md#ask-the-image",
    ),
    "spark_learn": Key(
        bool,
        True,
        "plan with measurements of earlier proofs",
        page="memory.md#what-proofs-measured",
    ),
    "spark_measurements_file": Key(
        str,
        "",
        "output of export_measurements.yml; default: `.spark/measurements.json`",
        page="memory.md#contribute-measurements",
    ),
    "spark_plan_file": Key(str, "", "output of plan.yml; default: `.spark/plan.json`"),
    "spark_plan_show": Key(
        str,
        "short",
        "output of the plan: `short`, `full` (as with `-v`), `json` (one line) or `none`",
        choices=("short", "full", "json", "none"),
    ),
    "spark_events": Key(
        str,
        "",
        "only with `-e`: file to which a run appends its events, as lines of JSON",
        page="automation.md#events",
    ),
    "spark_result": Key(
        str, "", "only with `-e`: file with the outcome of a run, as JSON", page="automation.md#events"
    ),
    "spark_timeline": Key(
        str,
        "",
        "only with `-e`: page with what each host did when; rollout.yml and rollback.yml write `.spark/timeline.html`",
        page="fleet.md#progress",
    ),
    "spark_tune": Key(dict, {}, "settings of `tune.yml`", page="speed.md#tune-a-service"),
    "spark_tune_write": Key(bool, False, "`tune.yml` writes the best variant into the inventory"),
    "spark_tuned": Key(
        dict,
        {},
        "options of vllm serve by service, above `args` and the recipe; written by `tune.yml`",
        page="speed.md#tune-a-service",
    ),
    "spark_wishes": Key(
        list,
        [],
        "jobs for which `plan.yml` proposes services instead of planning the inventory's",
        page="speed.md#models-for-given-jobs",
    ),
    "spark_wishes_file": Key(str, "", "inventory proposed for `spark_wishes`; default: `.spark/proposal.yml`"),
    "spark_status_timeout": Key(NUMBER, 10, "seconds that status.yml waits for a service", least=0, unit="seconds"),
    "spark_status_show": Key(
        str,
        "auto",
        "`auto`, `table` (a line per service), `groups` or `none`",
        choices=("auto", "table", "groups", "none"),
        page="health.md#status",
    ),
    "spark_status_file": Key(str, "", "JSON of status.yml; `-` prints it as one line"),
    "spark_status_page": Key(
        str,
        "",
        "HTML page of status.yml",
        page="health.md#as-a-page",
    ),
    "spark_status_timeline": Key(
        str, "", "HTML page of status.yml with the last day of each Spark", page="health.md#as-a-page"
    ),
    "spark_status_watch": Key(
        NUMBER,
        0,
        "seconds between two checks of status.yml; 0 checks once",
        least=0,
        unit="seconds",
        page="health.md#status",
    ),
    "spark_status_looks": Key(int, 0, "checks after which a repeating status.yml ends; 0: no limit", least=0),
    "spark_status_fail_on": Key(
        str,
        "down",
        "status.yml fails from this state on: `down`, `warning` or `never`",
        choices=("down", "warning", "never"),
    ),
    "spark_drift_show": Key(
        str,
        "groups",
        "`groups`, `lines` (one per host) or `none`",
        choices=("groups", "lines", "none"),
        page="health.md#drift",
    ),
    "spark_drift_file": Key(str, "", "JSON of drift.yml; `-` prints it as one line"),
    "spark_drift_fail_on": Key(
        str,
        "never",
        "drift.yml fails from `error`, `warning`, `info` on, or `never`",
        choices=("error", "warning", "info", "never"),
    ),
    "spark_doctor_file": Key(str, "", "JSON of doctor.yml; `-` prints it as one line", page="health.md#doctor"),
    "spark_doctor_fail_on": Key(
        str,
        "error",
        "doctor.yml fails from `error` or `warning` on, or `never`",
        choices=("error", "warning", "never"),
    ),
    "spark_doctor_answers": Key(bool, True, "doctor.yml requests an answer of each service"),
    "spark_support_dir": Key(
        str,
        "",
        "folder for support bundles; default: `.spark/support`",
        page="health.md#support-bundle",
    ),
    "spark_support_mib": Key(int, 16, "largest MiB of text per host in a support bundle", least=0, unit="MiB"),
    "spark_support_lines": Key(int, 2000, "lines of each log in a support bundle", least=0),
    "spark_lock_file": Key(
        str, "", "lock file; default: `.spark/spark.lock.yml`", page="distribution.md#the-lock-file"
    ),
    "spark_lock_ask": Key(
        bool,
        True,
        "site.yml asks registries and the hub where locked names point now",
        page="distribution.md#the-lock-file",
    ),
    "spark_site_mirrors": Key(
        list,
        [],
        "`images`, `models`: every host downloads them from the site's mirror",
        choices=("images", "models"),
    ),
    "spark_spread_fabric": Key(
        str,
        "",
        "name of the fast network that the host shares; default: its cluster's",
    ),
    "spark_moving_hosts": Key(
        int,
        2,
        "Sparks up to which an unlocked mutable tag or branch is only a warning",
        least=0,
    ),
    "spark_allow_moving": Key(bool, False, "allow unlocked mutable tags and branches"),
    "spark_verify": Key(
        str,
        "changed",
        "locked model files to hash: `changed`, `all`, or `size` (none)",
        choices=("changed", "all", "size"),
    ),
    "spark_bundle_dir": Key(
        str,
        "",
        "folder of the bundle, written by `bundle.yml`, read by `site.yml`",
        page="distribution.md#bundles-for-offline-machines",
    ),
    "spark_cluster": Key(dict, {}, "one engine across the hosts of a group", page="inventory.md#clusters"),
    "spark_fabric_addresses": Key(dict, {}, "QSFP addresses, CIDR by interface"),
    "spark_fabric_args": Key(
        list,
        ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"],
        "options of docker run that give a rank RDMA",
    ),
    "spark_firewall": Key(
        bool,
        True,
        "admit only the required hosts; on a cluster, also close the ports of Ray and torch outside the fabric",
        page="security.md",
    ),
    "spark_allow_from": Key(
        list,
        [],
        "further addresses, networks and hosts that may reach engines, speech servers, Ollama and exporters",
    ),
    "spark_firewall_allowed": Key(list, [], "ports open to everybody: `4000`, or `51820/udp`"),
    "spark_ray_pip_env": Key(dict, {}, "`PIP_*` variables for building an image with Ray"),
    "spark_speech": Key(list, [], "speech servers of this Spark", page="speech.md"),
    "spark_ollama": Key(dict, {}, "Ollama as a fallback", page="speech.md"),
    "spark_gateway": Key(dict, {}, "gateway: one URL for the fleet", page="gateway.md"),
    "spark_clients": Key(dict, {}, "Open WebUI and the Hermes agent", page="clients.md"),
    "spark_exporters": Key(dict, {}, "exporters of this Spark", page="monitoring.md"),
    "spark_monitoring": Key(dict, {}, "Prometheus, alerts, dashboards", page="monitoring.md"),
    "spark_fleet_monitor": Key(dict, {}, "watches all endpoints", page="monitoring.md#fleet-monitor"),
    "spark_watchdog": Key((bool, dict), True, "restarts wedged model servers", page="agent.md#watchdog"),
    "spark_load_guard": Key((bool, dict), True, "keeps memory free while a model loads", page="agent.md#load-guard"),
    "spark_guard": Key(
        (bool, dict),
        True,
        "guards free memory while engines serve",
        page="agent.md#memory-guard",
    ),
    "spark_live": Key((bool, dict), True, "live page of this Spark", page="agent.md#the-live-page"),
    "spark_host_protection": Key(
        (bool, dict),
        True,
        "keeps sshd and the journal reachable without free memory",
        page="agent.md#the-host-stays-in-reach",
    ),
    "spark_gpu_clocks": Key(dict, {}, "highest clock of the GPU", page="agent.md#clocks-of-the-gpu"),
    "spark_power": Key(dict, {}, "less busy-waiting and fewer watts at idle", page="agent.md#quiet-sparks"),
    "spark_pick": Key(
        dict,
        {},
        "requirements of a model for `plan.yml --tags models`, `quickstart.yml`, `discover.yml`",
        page="models.md#pick-a-model",
    ),
    "spark_bench": Key(dict, {}, "settings of `bench.yml`", page="benchmarks.md"),
    "spark_bench_services": Key((str, list), "", "services that `bench.yml` measures; default: all"),
    "spark_bench_dest": Key(str, "", "JSON of `bench.yml`"),
    "spark_pin": Key(
        bool,
        True,
        "start.yml and stop.yml keep services on demand up or down until the next boot; false ends that",
        page="on_demand.md#by-hand",
    ),
    "spark_stop_permanent": Key(bool, False, "stop.yml also prevents the start at boot"),
    "spark_memory_timeout": Key(
        NUMBER, 240, "seconds that stop.yml, start.yml and swap.yml wait for memory", least=0, unit="seconds"
    ),
    "spark_adopt_confirm": Key(bool, False, "adopt.yml replaces containers and units, instead of listing them"),
    "spark_adopt_undo": Key(bool, False, "adopt.yml restores what it replaced"),
    "spark_adopt_wait_seconds": Key(
        int, 1800, "seconds that adopt.yml waits for answers of restored services", least=0, unit="seconds"
    ),
    "spark_clean_remove": Key(
        (str, list),
        "",
        "clean.yml removes: images, caches, downloads, revisions, models",
    ),
    "spark_clean_weights": Key(bool, False, "clean.yml may remove unused revisions and models"),
    "spark_clean_keep": Key(list, [], "images and models that clean.yml keeps"),
    "spark_update_confirm": Key(bool, False, "update_host.yml changes hosts, instead of reporting"),
    "spark_update_batch": Key(int, 1, "hosts that update_host.yml changes at once; clusters stay whole", least=0),
    "spark_update_hold": Key(list, [], "packages that update_host.yml holds, as shell patterns"),
    "spark_update_firmware": Key(bool, True, "update_host.yml also updates firmware"),
    "spark_update_reboot": Key(
        str,
        "auto",
        "update_host.yml reboots: auto (when required), always or never",
        choices=("auto", "always", "never"),
    ),
    "spark_update_reboot_minutes": Key(
        int, 30, "minutes for a reboot; flashing takes up to 15", least=0, unit="minutes"
    ),
    "spark_update_lock_minutes": Key(
        int,
        30,
        "minutes to wait for another package installation",
        least=0,
        unit="minutes",
    ),
    "spark_rollout_canary": Key(
        (str, list),
        "",
        "hosts or clusters that rollout.yml changes first, one by one; default: the first; `none`: no canary",
        page="fleet.md#rollout",
    ),
    "spark_rollout_batch": Key((int, str), "25%", "hosts per batch of rollout.yml: a number or a share"),
    "spark_rollout_max_fail_percentage": Key(
        NUMBER,
        0,
        "percent of a batch that may fail, rolled back alone; above it the batch is rolled back and rollout.yml stops",
        least=0,
    ),
    "spark_rollout_bench": Key((bool, dict), True, "rollout.yml measures; keys as in `spark_bench`"),
    "spark_rollout_slower_percent": Key(
        NUMBER,
        20,
        "accepted loss of decode speed, percent",
        least=0,
    ),
    "spark_apply_all": Key(
        bool,
        False,
        "site.yml applies all roles, also on up-to-date hosts",
        page="fleet.md#a-run-that-has-nothing-to-do",
    ),
    "spark_rollout_all": Key(bool, False, "rollout.yml includes up-to-date hosts"),
    "spark_rollback_batch": Key(
        (int, str), "100%", "hosts per batch of rollback.yml: a number or a share", page="fleet.md#rollback"
    ),
    "spark_rollback_drain_seconds": Key(
        int,
        120,
        "seconds that rollback.yml waits for running requests",
        least=0,
        unit="seconds",
    ),
    "spark_generations_keep": Key(int, 5, "generations kept on a host", least=0),
    "spark_reset_confirm": Key(bool, False, "confirms reset.yml"),
    "spark_reset_weights": Key(bool, False, "reset.yml removes the weights too"),
    "spark_reset_fabric": Key(bool, False, "reset.yml restores the previous QSFP network"),
}
"""Every variable of hosts and groups, and of C(-e)."""

_SERVICES = Key(
    (str, list),
    "",
    "services by name, with commas or as a list; `all`, or left out, for all services of the run's hosts",
)
PLAYBOOKS: dict[str, dict[str, Key]] = {
    "bench_ab": {
        "a": Key(str, None, "service that is measured first"),
        "b": Key(str, None, "service of the same host that is measured after it"),
    },
    "bench_offline": {"services": _SERVICES},
    "discover": {
        "discover_hosts": Key(
            (str, list),
            [],
            "names or addresses, also `USER@NAME`, `NAME:PORT`, `192.168.1.10-20` and `192.168.1.0/28`; `localhost` is the controller",
        ),
        "discover_search": Key(bool, True, "also search by mDNS and on the controller's QSFP ports"),
        "discover_dest": Key(str, "my-sparks", "folder for the inventory; created if missing"),
        "discover_user": Key(str, "", "login account; by default the account of your ssh settings"),
        "discover_accept_new_keys": Key(
            bool,
            False,
            "accept unknown host keys; a changed key is always refused",
        ),
        "discover_whole": Key(
            bool,
            False,
            "write nothing if a named machine is not a known Spark; quickstart.yml sets it",
        ),
        "discover_timeout": Key(
            NUMBER,
            3,
            "time limit for the greeting of an ssh server",
            least=0.1,
            most=60,
            unit="seconds",
        ),
        "discover_patience": Key(
            int, 120, "time limit for each question to a machine", least=10, most=3600, unit="seconds"
        ),
    },
    "export": {
        "services": _SERVICES,
        "export_dest": Key(str, "exported", "folder for the files; created if missing"),
        "export_form": Key((str, list), [], "`docker`, `compose`, `systemd`, `eugr`, `sparkrun`; default: all"),
    },
    "explain": {
        "explain_log": Key(str, None, "log file on the controller", page="troubleshooting.md"),
        "services": _SERVICES,
    },
    "import": {
        "import_src": Key(str, None, "the file; its env files are read from the same folder"),
        "import_form": Key(
            str,
            "auto",
            "one of the forms above",
            choices=("auto", "docker", "compose", "kubernetes", "systemd", "eugr", "sparkrun", "vllm_recipe", "nvidia"),
        ),
        "import_name": Key(str, None, "name of the service"),
        "import_image": Key(str, None, "image, if the input names none or you want another"),
        "import_select": Key(
            str,
            None,
            "name of a container, workload or compose service, if the input has several",
        ),
        "import_variables": Key(
            dict,
            {},
            'values of `$NAME`, `<NAME>` and `{placeholder}`: `-e \'{"import_variables": {"tensor_parallel": 1}}\'`',
        ),
        "import_variant": Key(str, None, "variant of a vLLM recipe; default: selected to fit"),
        "import_features": Key((list, str), None, "features of a vLLM recipe; default: the recipe's defaults"),
    },
    "rollback": {
        "generation": Key(
            (int, dict), 0, "number of a generation, or a number by host; the last proven one when left out"
        )
    },
    "restart": {"services": _SERVICES},
    "start": {"services": _SERVICES},
    "stop": {
        "services": Key(
            (str, list), None, "services by name, with commas or as a list; `all` for all services of the run's hosts"
        )
    },
    "tune": {"service": Key(str, "", "service that is tuned, of one host")},
    "swap": {
        "out": Key((str, list), "", "service that goes"),
        "in": Key((str, list), "", "service that comes"),
    },
}
"""What a playbook is given by C(-e) beside variables of the inventory, by its name."""
