#!/bin/sh
# Leases memory of a node over UDP, writes and reads it, keeps it beyond its first term, and gives it back. No RDMA and no
# privilege is needed.
#
#   export FABRICBIOS_NODE=NODE:5701 FABRICBIOS_IDENTITY=FILE
#   ./lease.sh
set -eu

answer=$(fabricctl --json lease alloc mem --bytes 1MiB --secs 10 --transport udp)
lease=$(printf '%s\n' "$answer" | sed -n 's/.*"lease_id":"\([0-9a-f]*\)".*/\1/p')
echo "lease $lease"

# Renews the lease in the last fifth of each term, until it is stopped.
fabricctl lease keep "$lease" &
keeper=$!
trap 'kill "$keeper" || :; fabricctl lease free "$lease"' EXIT
trap 'exit 1' HUP INT TERM

printf 'written by a shell' | fabricctl mem write "$lease" --offset 4096
sleep 12 # your work; without `lease keep` the lease would be over now
fabricctl mem read "$lease" --offset 4096 --len 18
echo
