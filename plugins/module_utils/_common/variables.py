# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of an inventory: every variable that a person writes, and the extra variables of playbooks."""

from __future__ import annotations

from .schema import NUMBER, Key

VARIABLES: dict[str, Key] = {
    "spark_services": Key(list, [], "services of this host, see [their keys](#keys-of-a-service)"),
    "spark_defaults": Key(
        dict, {}, "settings shared by all services of the host: `args`, `env`, `image`, `api_key_file` and others"
    ),
    "spark_recipe_dirs": Key(list, [], "further folders with recipes, on the controller; later ones win"),
    "spark_recipe_sources": Key(
        list,
        [],
        "repositories and archives of others that services name recipes of, as `recipe: SOURCE:NAME`",
        page="importing.md#recipes-by-reference",
    ),
    "spark_model_dir": Key(
        str, "", "folder on the controller that model.path is relative to; the inventory folder when left out"
    ),
    "spark_management_address": Key(
        str, "", "address that engines listen on which other hosts have to reach; asked from the host when left out"
    ),
    "spark_listen": Key(str, "", "address that every engine of the host listens on; overrides the default"),
    "spark_hf_home": Key(
        str, "/srv/huggingface", "HF_HOME on the host: where weights are kept; without colon, comma and double quote"
    ),
    "spark_cache_dir": Key(
        str,
        "/var/cache/dgxspark",
        "compile and JIT caches on the host, a folder per service; without colon, comma and double quote",
    ),
    "spark_hf_token_file": Key(str, "", "file on the controller with a Hugging Face token, for gated models"),
    "spark_registries": Key(
        list, [], "accounts of Docker at registries, for all hosts that pull from them", page="inventory.md#registries"
    ),
    "spark_hf_endpoint": Key(
        str,
        "",
        "address of a Hugging Face mirror, `https://...` without login and parameters; the public hub when left out",
    ),
    "spark_gpu_args": Key(list, ["--gpus", "all"], "how docker run is given the GPU"),
    "spark_ulimits": Key(list, ["memlock=-1", "stack=67108864"], "ulimits of the engines' containers"),
    "spark_shm_size": Key(
        str,
        "8g",
        "private /dev/shm of each engine; an upper bound, taken from the same memory. `kv-offloading-size` gets more by itself",
    ),
    "spark_docker_args": Key(list, [], "further options of docker run for every engine of the host"),
    "spark_sysroot": Key(str, "/", "where the host's /proc and /sys are read; for simulated hosts"),
    "spark_total_gib": Key(
        NUMBER, None, "total memory as CUDA reports it, GiB; measured, else 119.67", least=0, unit="GiB"
    ),
    "spark_os_reserve_gib": Key(NUMBER, 5.2, "memory of everything but the services, GiB", least=0, unit="GiB"),
    "spark_safety_margin_gib": Key(NUMBER, 2.0, "memory kept free above the reserve, GiB", least=0, unit="GiB"),
    "spark_overheads": Key(dict, {}, "overheads of an engine, see the module memory_budget"),
    "spark_sidecars": Key(list, [], "other programs of the host that need memory: a list of name and memory_gib"),
    "spark_image_catalogue": Key(list, [], "further entries of the image catalogue"),
    "spark_ignore_rules": Key(list, [], "ids of rules to ignore on the host"),
    "spark_autofix": Key(
        bool, False, "apply corrections that do not change the meaning of a launch; usually given by -e"
    ),
    "spark_plan_facts": Key(
        str,
        "auto",
        "whether the plan uses facts of the hosts: auto, never or required; site.yml gathers them unless set to never, plan.yml only if set by -e",
        choices=("auto", "never", "required"),
    ),
    "spark_probe": Key(
        str,
        "auto",
        "where the vLLM of an image is asked to plan what the arithmetic does not know: auto (on a Spark that has it), controller (by "
        "its own Docker) or none; usually given by -e",
        choices=("auto", "controller", "none"),
        page="memory.md#ask-the-image",
    ),
    "spark_learn": Key(
        bool,
        True,
        "plan with what proofs measured of the same launch, in place of what is assumed of it",
        page="memory.md#what-proofs-measured",
    ),
    "spark_measurements_file": Key(
        str,
        "",
        "where export_measurements.yml writes, on the controller; `.spark/measurements.json` when left out",
        page="memory.md#contribute-measurements",
    ),
    "spark_plan_file": Key(str, "", "where plan.json is written, on the controller; `.spark/plan.json` when left out"),
    "spark_plan_show": Key(
        str,
        "short",
        "how plan.yml and site.yml show the plan: `short` (notes are counted), `full` (as with `-v`), `json` (one line) or `none`; usually given by -e",
        choices=("short", "full", "json", "none"),
    ),
    "spark_status_timeout": Key(
        NUMBER, 10, "seconds that status.yml gives a service for its answer", least=0, unit="seconds"
    ),
    "spark_status_show": Key(
        str,
        "auto",
        "how status.yml shows a fleet: `auto`, `table` (a line a service), `groups` or `none`",
        choices=("auto", "table", "groups", "none"),
        page="status.md",
    ),
    "spark_status_file": Key(str, "", "file on the controller for the JSON of status.yml; `-` prints it as one line"),
    "spark_status_page": Key(
        str,
        "",
        "file on the controller for the status as a page, status.html; none when left out",
        page="status.md#as-a-page",
    ),
    "spark_status_watch": Key(
        NUMBER,
        0,
        "seconds between two looks of status.yml, which then goes on until it is interrupted; 0 looks once",
        least=0,
        unit="seconds",
        page="status.md",
    ),
    "spark_status_looks": Key(int, 0, "looks after which a watching status.yml ends; 0 for no end", least=0),
    "spark_status_fail_on": Key(
        str,
        "down",
        "state from which status.yml fails: `down`, `look` or `never`",
        choices=("down", "look", "never"),
    ),
    "spark_drift_show": Key(
        str,
        "groups",
        "how drift.yml shows differences: `groups`, `lines` (one for each host) or `none`",
        choices=("groups", "lines", "none"),
        page="drift.md",
    ),
    "spark_drift_file": Key(str, "", "file on the controller for the JSON of drift.yml; `-` prints it as one line"),
    "spark_drift_fail_on": Key(
        str,
        "never",
        "severity from which drift.yml fails: `error`, `warning`, `info` or `never`",
        choices=("error", "warning", "info", "never"),
    ),
    "spark_doctor_file": Key(
        str, "", "file on the controller for the JSON of doctor.yml; `-` prints it as one line", page="doctor.md"
    ),
    "spark_doctor_fail_on": Key(
        str,
        "error",
        "severity from which doctor.yml fails: `error`, `warning` or `never`",
        choices=("error", "warning", "never"),
    ),
    "spark_doctor_answers": Key(bool, True, "whether doctor.yml reads an answer of each service"),
    "spark_support_dir": Key(
        str,
        "",
        "folder on the controller for support bundles; `.spark/support` when left out",
        page="support_bundle.md",
    ),
    "spark_support_mib": Key(
        int, 16, "MiB of text that a support bundle takes from one host at most", least=0, unit="MiB"
    ),
    "spark_support_lines": Key(int, 2000, "lines of each log in a support bundle", least=0),
    "spark_lock_file": Key(
        str,
        "",
        "lock file on the controller; `.spark/spark.lock.yml` when left out",
        page="distribution.md#the-lock-file",
    ),
    "spark_lock_ask": Key(
        bool,
        True,
        "whether site.yml checks at registries and the hub what locked tags and branches point to now",
        page="distribution.md#the-lock-file",
    ),
    "spark_site_mirrors": Key(
        list,
        [],
        "`images`, `models`: kinds that every host downloads from the site's own mirror instead of copying them from another host",
        choices=("images", "models"),
    ),
    "spark_spread_fabric": Key(
        str,
        "",
        "name of the fast network that a host shares with others of that name; that of its cluster when left out",
    ),
    "spark_moving_hosts": Key(
        int,
        2,
        "number of Sparks up to which a mutable tag or branch without a lock entry is a warning, not an error",
        least=0,
    ),
    "spark_allow_moving": Key(
        bool, False, "allows mutable tags and branches without a lock entry on any number of Sparks"
    ),
    "spark_verify": Key(
        str,
        "changed",
        "which locked files of a model are hashed: `changed` (new and modified ones), `all`, or `size` (none)",
        choices=("changed", "all", "size"),
    ),
    "spark_bundle_dir": Key(
        str,
        "",
        "folder on the controller that `bundle.yml` packs into, and that `site.yml` takes images and weights from",
        page="distribution.md#bundles-for-offline-machines",
    ),
    "spark_cluster": Key(dict, {}, "one engine across several hosts, set on their group", page="inventory.md#clusters"),
    "spark_fabric_addresses": Key(
        dict, {}, "addresses of the QSFP interfaces of a host, CIDR by interface; chosen when left out"
    ),
    "spark_fabric_args": Key(
        list,
        ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"],
        "options of docker run that give a rank of a cluster RDMA",
    ),
    "spark_firewall": Key(
        bool,
        True,
        "admit to engines, speech servers, Ollama and exporters the hosts alone that have to reach them; on a cluster, "
        "close the ports of Ray and torch to other networks than the fabric",
        page="security.md",
    ),
    "spark_allow_from": Key(
        list,
        [],
        "who else may reach engines, speech servers, Ollama and exporters: addresses, networks, hosts of the inventory",
    ),
    "spark_firewall_allowed": Key(list, [], "ports that the firewall leaves open to everybody: `4000`, or `51820/udp`"),
    "spark_ray_pip_env": Key(
        dict, {}, "`PIP_*` variables for building an image with Ray, such as your own package index"
    ),
    "spark_speech": Key(list, [], "speech servers of this Spark", page="speech.md"),
    "spark_ollama": Key(dict, {}, "Ollama as a fallback on this Spark", page="speech.md"),
    "spark_gateway": Key(dict, {}, "makes the host the gateway, the one URL of the fleet", page="gateway.md"),
    "spark_clients": Key(dict, {}, "Open WebUI and the Hermes agent on the host", page="clients.md"),
    "spark_exporters": Key(dict, {}, "exporters of this Spark", page="monitoring.md"),
    "spark_monitoring": Key(dict, {}, "Prometheus, alerts and dashboards on the host", page="monitoring.md"),
    "spark_fleet_monitor": Key(dict, {}, "makes the host watch all endpoints", page="fleet_monitor.md"),
    "spark_watchdog": Key(
        (bool, dict), True, "restarts of wedged model servers; on when left out", page="agent.md#watchdog"
    ),
    "spark_load_guard": Key(
        (bool, dict), True, "keeps memory free while a model loads; on when left out", page="agent.md#load-guard"
    ),
    "spark_guard": Key(
        (bool, dict),
        True,
        "guards the memory of the host while engines serve; on when left out",
        page="agent.md#memory-guard",
    ),
    "spark_host_protection": Key(
        (bool, dict),
        True,
        "keeps sshd and the journal in reach when memory runs out; on when left out",
        page="agent.md#the-host-stays-in-reach",
    ),
    "spark_gpu_clocks": Key(dict, {}, "highest clock of the GPU, kept over reboots", page="agent.md#clocks-of-the-gpu"),
    "spark_pick": Key(
        dict,
        {},
        "requirements of a model, for `plan.yml --tags models`, `quickstart.yml` and `discover.yml`",
        page="models.md#pick-a-model",
    ),
    "spark_bench": Key(dict, {}, "settings of `bench.yml`", page="benchmarks.md"),
    "spark_bench_services": Key((str, list), "", "services that `bench.yml` measures, by name; all when empty"),
    "spark_bench_dest": Key(str, "", "file on the controller that `bench.yml` writes its figures to, as JSON"),
    "spark_pin": Key(
        bool,
        True,
        "start.yml and stop.yml keep services on demand up or down until the next boot; false leaves them to their requests again",
        page="on_demand.md#by-hand",
    ),
    "spark_stop_permanent": Key(bool, False, "services stopped by stop.yml stay stopped after a reboot"),
    "spark_memory_timeout": Key(
        NUMBER, 240, "seconds that stop.yml, start.yml and swap.yml wait for memory", least=0, unit="seconds"
    ),
    "spark_adopt_confirm": Key(
        bool, False, "confirms that adopt.yml replaces containers and units; without it, it only shows what it would do"
    ),
    "spark_adopt_undo": Key(bool, False, "adopt.yml restores the containers and units that it replaced"),
    "spark_adopt_wait_seconds": Key(
        int, 1800, "seconds that adopt.yml waits for restored containers and units to answer", least=0, unit="seconds"
    ),
    "spark_clean_remove": Key(
        (str, list),
        "",
        "kinds that clean.yml removes: images, caches, downloads, revisions, models; nothing when empty",
    ),
    "spark_clean_weights": Key(
        bool, False, "confirms that clean.yml removes weights: revisions and models that no service uses"
    ),
    "spark_clean_keep": Key(
        list, [], "images and models that clean.yml never removes, as they are written in the inventory"
    ),
    "spark_update_confirm": Key(
        bool, False, "confirms that update_host.yml changes hosts; without it, it only shows what it would do"
    ),
    "spark_update_batch": Key(
        int, 1, "hosts that update_host.yml has out of service at once; a cluster is never split", least=0
    ),
    "spark_update_hold": Key(list, [], "packages that update_host.yml holds back, shell patterns of their names"),
    "spark_update_firmware": Key(bool, True, "whether update_host.yml also updates firmware"),
    "spark_update_reboot": Key(
        str,
        "auto",
        "when update_host.yml reboots: auto (when something asks for it), always or never",
        choices=("auto", "always", "never"),
    ),
    "spark_update_reboot_minutes": Key(
        int, 30, "minutes that a host may take to come back; flashing takes up to 15", least=0, unit="minutes"
    ),
    "spark_update_lock_minutes": Key(
        int,
        30,
        "minutes that update_host.yml waits for another program that installs packages",
        least=0,
        unit="minutes",
    ),
    "spark_rollout_canary": Key(
        (str, list),
        "",
        "hosts or clusters that rollout.yml changes first, each alone; the first one when empty, nobody when `none`",
        page="rollout.md",
    ),
    "spark_rollout_batch": Key(
        (int, str), "25%", "hosts that rollout.yml changes at once after that, a number or a share"
    ),
    "spark_rollout_max_fail_percentage": Key(
        NUMBER,
        0,
        "percentage of a batch that may fail and is rolled back alone; if more fail, the batch is rolled back and rollout.yml stops",
        least=0,
    ),
    "spark_rollout_bench": Key((bool, dict), True, "whether rollout.yml measures; keys of `spark_bench` set what"),
    "spark_rollout_slower_percent": Key(
        NUMBER,
        20,
        "how much slower than before a service may decode in rollout.yml, where the two can be compared",
        least=0,
    ),
    "spark_apply_all": Key(
        bool,
        False,
        "site.yml applies everything, also on hosts that are up to date",
        page="fleet.md#a-run-that-has-nothing-to-do",
    ),
    "spark_rollout_all": Key(bool, False, "rollout.yml also goes through hosts that are up to date"),
    "spark_rollback_batch": Key(
        (int, str),
        "100%",
        "hosts that rollback.yml takes back at once, a number or a share",
        page="rollout.md#rollback",
    ),
    "spark_rollback_drain_seconds": Key(
        int,
        120,
        "seconds that requests are given to end before rollback.yml restarts a service",
        least=0,
        unit="seconds",
    ),
    "spark_generations_keep": Key(
        int, 5, "generations that are kept on a host; images that only older ones name go with them", least=0
    ),
    "spark_reset_confirm": Key(bool, False, "confirms reset.yml"),
    "spark_reset_weights": Key(bool, False, "reset.yml also removes the weights"),
    "spark_reset_fabric": Key(bool, False, "reset.yml also restores the previous QSFP network"),
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
            "addresses, names of DNS or of `~/.ssh/config`, `USER@NAME`, `NAME:PORT`, ranges `192.168.1.10-20` and networks "
            "`192.168.1.0/28`; `localhost` is the controller",
        ),
        "discover_search": Key(
            bool, True, "whether mDNS and the neighbours on QSFP ports of the controller are asked too"
        ),
        "discover_dest": Key(str, "my-sparks", "folder of the inventory, which need not be there yet"),
        "discover_user": Key(str, "", "account to log in with; that of your ssh settings when left out"),
        "discover_accept_new_keys": Key(
            bool,
            False,
            "whether the key of a host that ssh does not know yet is accepted and noted; one that changed never is",
        ),
        "discover_whole": Key(
            bool,
            False,
            "whether nothing is written when a machine that was named is no Spark or not known; quickstart.yml wants it",
        ),
        "discover_timeout": Key(
            NUMBER,
            3,
            "seconds that a machine has for the greeting of its ssh server",
            least=0.1,
            most=60,
            unit="seconds",
        ),
        "discover_patience": Key(
            int, 120, "seconds that a machine has for each question", least=10, most=3600, unit="seconds"
        ),
    },
    "explain": {
        "explain_log": Key(str, None, "log file on the controller", page="troubleshooting.md"),
        "services": _SERVICES,
    },
    "import": {
        "import_src": Key(str, None, "the file; env files named in it are read from its folder"),
        "import_form": Key(
            str,
            "auto",
            "one of the forms above",
            choices=("auto", "docker", "compose", "kubernetes", "systemd", "eugr", "sparkrun", "vllm_recipe", "nvidia"),
        ),
        "import_name": Key(str, None, "name of the service"),
        "import_image": Key(str, None, "image, where the text has none or you want another"),
        "import_select": Key(
            str,
            None,
            "which one, where the text has several: name of the container, of its workload or of its compose service",
        ),
        "import_variables": Key(
            dict,
            {},
            'values of `$NAME`, `<NAME>` and `{placeholder}`: `-e \'{"import_variables": {"tensor_parallel": 1}}\'`',
        ),
        "import_variant": Key(str, None, "variant of a recipe of vLLM's own; the one that fits when left out"),
        "import_features": Key(
            (list, str), None, "features of a recipe of vLLM's own; those that it has on by itself when left out"
        ),
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
    "swap": {
        "out": Key((str, list), "", "service that goes"),
        "in": Key((str, list), "", "service that comes"),
    },
}
"""What a playbook is given by C(-e) beside variables of the inventory, by its name."""
