# Prelude of two-machine scenarios: this machine's end of the link between the two, and the other
# end answering on it, so that neither command starts before both machines are there.
modprobe virtio_net
ip address add "$LAB_ADDRESS/24" dev eth0
ip link set eth0 mtu 9000 up
timeout 120 bash -c 'until ping -q -c 1 -W 1 "$LAB_PEER" > /dev/null; do :; done'
