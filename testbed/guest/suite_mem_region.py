#!/usr/bin/python3
# lab: one-vm timeout=1200
"""Everything that holds for leases as memory windows holds for leases as regions of their own."""
import suite_mem_rdma
from checks import length

suite_mem_rdma.CYCLES = length(20, 5)

if __name__ == "__main__":
    suite_mem_rdma.main("region")
