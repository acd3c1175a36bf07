#!/bin/sh
# Runs in a container of the base image: install the packages of the node given as arguments.
set -eu
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d   # nothing is started while building
chmod 755 /usr/sbin/policy-rc.d
apt-get update -q
apt-get install -y -q --no-install-recommends "$@"
rm -rf /usr/sbin/policy-rc.d /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/cache/apt/*.bin /etc/ssh/ssh_host_*
# Units of a real machine that mean nothing in a container.
systemctl mask --quiet systemd-udevd.service systemd-udev-trigger.service systemd-logind.service getty.target \
    console-getty.service systemd-remount-fs.service dev-hugepages.mount sys-kernel-debug.mount sys-kernel-config.mount \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-firstboot.service
# Networks of a container are not systemd-networkd's, so there is nothing that it could wait for.
systemctl mask --quiet systemd-networkd-wait-online.service
# What the roles exporters and monitoring install; their own units run it, on a simulated Spark as on a real one.
systemctl mask --quiet prometheus.service prometheus-alertmanager.service prometheus-node-exporter.service
# The docker unit finds no containerd to talk to when containerd.service is disabled.
systemctl enable --quiet docker.service containerd.service ssh.service
: > /etc/machine-id
