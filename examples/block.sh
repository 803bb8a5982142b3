#!/bin/sh
# Leases block storage of a node, makes it a block device of this machine, writes and reads it, and gives it back. Run it as
# root. The transport is NVMe-oF where the node has it, else UDP, which needs the kernel module nbd.
#
#   export FABRICBIOS_NODE=NODE:5701 FABRICBIOS_IDENTITY=FILE
#   ./block.sh
set -eu

answer=$(fabricctl --json lease alloc block --bytes 4MiB --secs 60)
lease=$(printf '%s\n' "$answer" | sed -n 's/.*"lease_id":"\([0-9a-f]*\)".*/\1/p')
trap 'fabricctl lease free "$lease"' EXIT
trap 'exit 1' HUP INT TERM

device=$(fabricctl block attach "$lease")
echo "lease $lease is $device"

# Any program that takes a block device: mkfs.ext4, LVM, a database. Here, 4 KiB at the start, not through the page cache.
printf 'written to a block device' | dd of="$device" bs=4096 conv=sync,fsync oflag=direct status=none iflag=fullblock
dd if="$device" bs=4096 count=1 iflag=direct status=none | head -c 25
echo

fabricctl block detach "$lease"
