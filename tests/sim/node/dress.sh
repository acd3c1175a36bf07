#!/bin/sh
# Runs in a container of the operating system image: make it a Spark.
set -eu
cp -a /sim/rootfs/. /
chown -R 0:0 /etc/systemd/system /etc/sudoers.d /etc/ssh /etc/dgx-release /usr/local /usr/bin/nvidia-* /usr/bin/udevadm \
    /usr/lib/python3/dist-packages/spark_sim_archives.*
# An interpreter for those who ask for it: it has imported what Ansible's modules import.
install -D -m 644 /warm.py /usr/local/lib/spark-sim/warm.py
python3 /warm.py client /run/spark-sim-python > /usr/local/bin/spark-sim-python
chmod 755 /usr/local/bin/spark-sim-python
install -D -m 644 /sim-common/ledger.py /usr/local/lib/spark-sim/ledger.py
chmod 755 /usr/bin/nvidia-* /usr/bin/udevadm /usr/local/sbin/spark-sim-* /usr/local/bin/spark-sim
chmod 440 /etc/sudoers.d/spark
groupadd --gid 1000 spark
useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash --groups sudo spark
install -d -m 700 -o spark -g spark /home/spark/.ssh
python3 /sim/fixtures.py /srv/huggingface
chown -R spark:spark /srv/huggingface
systemctl enable --quiet spark-sim-setup.service spark-sim.service spark-sim-python.service
