#!/bin/sh
# First program in the guest: puts the host's root file system (read-only, over 9p) under a tmpfs
# overlay and hands over to boot/init.sh in it. Runs under busybox, before anything else exists.

mkdir -p /proc /sys /dev /ro /rw /new
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev

# A failure here must reach the host as one: it leaves without an exit code, and this is the last
# line of its console.
give_up() {
  echo "lab: $1"
  echo o > /proc/sysrq-trigger
  sleep 60
}

grep -q lab.trial /proc/cmdline && give_up "trial boot reached user space"

for module in /modules/*.ko; do
  insmod "$module" || give_up "cannot load $module"
done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=1048576,cache=loose root /ro \
  || give_up "cannot mount the host's root file system over 9p"
mount -t tmpfs -o size=75% overlay /rw && mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work overlay /new \
  || give_up "cannot mount the overlay on the host's root file system"
mount -t tmpfs -o mode=755 run /new/run
mkdir -p /new/run/lab/share && cp /lab/* /new/run/lab/
mount -t 9p -o trans=virtio,version=9p2000.L,rw,msize=262144,cache=none share /new/run/lab/share \
  || give_up "cannot mount the shared directory over 9p"
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -o move /dev /new/dev
exec switch_root /new /bin/bash /run/lab/init.sh
