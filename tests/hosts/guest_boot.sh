#!/bin/busybox sh
# The first program of the guest: loads the disk's driver, makes the disk the root, goes on as guest_init.py.
# The tests need a real root on a real disk: nothing can pivot away from an initramfs, and io.max counts on a device.
set -e
box=/bin/busybox
trap 'echo "the guest did not boot: exit code $?"; $box poweroff -f' EXIT
$box mkdir -p /dev /disk
$box mount -t devtmpfs devtmpfs /dev
# In the order of their names, which is the order in which they need each other.
for module in /modules/*; do $box insmod "$module"; done
$box mount -t ext4 /dev/vda /disk
# What is of this run, beside the interpreter that the disk holds.
$box cp -r /fresh/. /disk
exec $box switch_root /disk /usr/bin/python3 -I /guest/init.py
