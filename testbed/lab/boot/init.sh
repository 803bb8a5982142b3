#!/bin/bash
# Process 1 of the guest, or the only service of a systemd that is process 1: finishes what a booted Debian would have,
# runs /run/lab/command, and tells the host over a virtio-serial port of its own that it begins, and its exit code. The
# host takes that code and nothing else for the result: a guest that crashes cannot write it.

# shellcheck source=/dev/null
. /run/lab/environment
umask 022

set_up() {
  mkdir -p /dev/shm /dev/pts /dev/hugepages
  mount -t tmpfs -o mode=1777 shm /dev/shm
  mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mount -t debugfs debugfs /sys/kernel/debug
  mount -t tracefs tracefs /sys/kernel/tracing
  ln -sfn /proc/self/fd /dev/fd
  ln -sfn /proc/self/fd/0 /dev/stdin
  ln -sfn /proc/self/fd/1 /dev/stdout
  ln -sfn /proc/self/fd/2 /dev/stderr
  mkdir -p /run/lock /lib/modules
  ln -sfn "$LAB_MODULES" "/lib/modules/$(uname -r)"
  hostname "$LAB_ROLE"
  # The host's own names would send a lookup of this guest's name to a network it does not have.
  printf '127.0.0.1 localhost %s\n::1 localhost\n' "$LAB_ROLE" > /etc/hosts
  ip link set lo up
}

# Hands process 1 over to systemd, which runs this script again as its only service. Nothing but that service is asked
# for, so no other unit of the host's Debian starts.
hand_over() {
  rm -f /.dockerenv
  mkdir -p /run/systemd/system
  # Without it systemd would take this for the first boot of a new machine.
  echo 0123456789abcdef0123456789abcdef > /etc/machine-id
  cat > /run/systemd/system/lab.service <<'UNIT'
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/bash /run/lab/init.sh
StandardOutput=tty
StandardError=inherit
TTYPath=/dev/console
UNIT
  exec /lib/systemd/systemd --unit=lab.service --show-status=no --log-level=warning
}

if [ $$ = 1 ]; then
  set_up
  [ "$LAB_SYSTEMD" = 1 ] && hand_over
fi
ulimit -n 65536

# There is no udev to make /dev/virtio-ports.
port() {
  local entry
  for entry in /sys/class/virtio-ports/*; do
    [ "$(cat "$entry/name")" = "$1" ] && echo "/dev/${entry##*/}"
  done
}
result=$(port lab.exit)

run() {
  printf '%s begins\n' "$LAB_NONCE" > "$result"
  cd "$LAB_DIRECTORY" || return 125
  setsid "$@" /run/lab/command
}

if [ "$LAB_TERMINAL" = 1 ]; then
  # Held open: a line that nobody has open forgets its size.
  exec 3<> /dev/ttyS1
  stty rows "$LAB_ROWS" cols "$LAB_COLUMNS" <&3
  run --ctty --wait bash < /dev/ttyS1 > /dev/ttyS1 2>&1
  code=$?
else
  # A pipe and not the port itself: a port can be opened once only, and scripts reopen their
  # standard output by name.
  exec 3> >(exec cat > "$(port lab.output)")
  forwarder=$!
  run --wait bash < /dev/null >&3 2>&3 3>&-
  code=$?
  exec 3>&-
  # Whatever the command left running may hold the pipe open for ever: its last words get 2 s.
  timeout 2 tail --sleep-interval=0.05 --pid="$forwarder" -f /dev/null
fi

printf '%s %s\n' "$LAB_NONCE" "$code" > "$result"
echo o > /proc/sysrq-trigger
sleep infinity
