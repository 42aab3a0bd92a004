#!/bin/sh
# Runs in a clean root: installs from /given without a network, and runs smoke.py as root and as an ordinary user.
set -e
python3 -m venv /opt/ringfence
/opt/ringfence/bin/pip install --quiet --no-index --find-links /given ringfence
python="/opt/ringfence/bin/python"
$python /given/smoke.py "$1"
useradd --create-home ordinary
setpriv --reuid ordinary --regid ordinary --init-groups env HOME=/home/ordinary $python /given/smoke.py "$1"
