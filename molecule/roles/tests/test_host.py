"""What the role host leaves behind."""

from __future__ import annotations

import pytest


def test_the_account_of_the_units_may_use_docker_and_not_log_in(host):
    user = host.user("dgxspark")
    assert user.exists
    assert "docker" in user.groups
    assert user.shell == "/usr/sbin/nologin"


def test_people_may_be_let_use_docker(host):
    assert "docker" in host.user("spark").groups


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("/srv/huggingface", 0o755),
        ("/var/cache/dgxspark", 0o755),
        ("/etc/dgxspark/services", 0o755),
        ("/etc/dgxspark/env", 0o750),
        ("/etc/dgxspark/secrets", 0o700),
        ("/var/lib/dgxspark/receipts", 0o755),
    ],
)
def test_folders(host, path, mode):
    with host.sudo():
        folder = host.file(path)
        assert folder.is_directory
        assert folder.mode == mode


def test_the_helper_runs_on_the_host_itself(host):
    with host.sudo():
        ran = host.run("/usr/bin/python3 /usr/local/libexec/dgxspark/spark_unit.py release nothing")
    assert ran.rc == 0, ran.stderr


def test_secrets_reach_the_command_and_no_shell(host):
    with host.sudo():
        host.check_output("mkdir -p /run/dgxspark/secrets")
        host.check_output("""printf '%s' '$(id) `id` "x"' > /run/dgxspark/secrets/A_KEY""")
        ran = host.run("/usr/local/libexec/dgxspark/with-secrets printenv A_KEY")
        host.check_output("rm -r /run/dgxspark/secrets")
    assert ran.stdout.strip() == '$(id) `id` "x"'
