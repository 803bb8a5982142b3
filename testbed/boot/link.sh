# Prelude of two-machine scenarios: this machine's end of the link between the two.
modprobe virtio_net
ip address add "$LAB_ADDRESS/24" dev eth0
ip link set eth0 mtu 9000 up
