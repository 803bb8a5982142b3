# Prelude of suites with virtual functions: `pf0` and `pf1` are network cards that have up to seven of them each, `wire0`
# a plain interface on the same wire.
modprobe virtio_net
modprobe igb
# The emulated IOMMU does not remap interrupts.
modprobe vfio_iommu_type1 allow_unsafe_interrupts=1
modprobe vfio-pci
timeout 20 bash -c 'until [ "$(ls /sys/class/net/*/device/sriov_totalvfs 2> /dev/null | wc -l)" = 2 ]; do sleep 0.1; done'
for lab_device in /sys/class/net/*; do
    lab_name=${lab_device##*/}
    case $(cat "$lab_device/address") in
        52:54:00:77:00:03) ip link set "$lab_name" name wire0 ;;
        52:54:00:77:00:04) ip link set "$lab_name" name pf0 ;;
        52:54:00:77:00:05) ip link set "$lab_name" name pf1 ;;
    esac
done
ip link set wire0 up
