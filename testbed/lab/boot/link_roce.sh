# Prelude of two-machine suites: soft-RoCE over the link between the two.
modprobe rdma_rxe
rdma link add rxe0 type rxe netdev eth0
