# Prelude of one-machine suites: an RDMA device without hardware. One end of a veth pair carries
# soft-RoCE, so that the device has an IPv4 address (GID index 1) and a link that is up.
ip link add d0 type veth peer name d1
ip address add 10.77.0.1/24 dev d0
ip link set d0 up
ip link set d1 up
modprobe rdma_rxe
rdma link add rxe0 type rxe netdev d0
