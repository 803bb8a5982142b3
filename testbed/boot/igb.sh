# Prelude of suites with virtual functions: `pf0` is a network card that has up to seven of them, `wire0` a plain
# interface on the same wire.
modprobe virtio_net
modprobe igb
# The emulated IOMMU does not remap interrupts.
modprobe vfio_iommu_type1 allow_unsafe_interrupts=1
modprobe vfio-pci
timeout 20 bash -c 'until ls /sys/class/net/*/device/sriov_totalvfs > /dev/null 2>&1; do sleep 0.1; done'
for lab_device in /sys/class/net/*; do
    lab_name=${lab_device##*/}
    if [ -e "$lab_device/device/sriov_totalvfs" ]; then
        ip link set "$lab_name" name pf0
    elif [ "$(cat "$lab_device/address")" = 52:54:00:77:00:03 ]; then
        ip link set "$lab_name" name wire0
    fi
done
ip link set wire0 up
