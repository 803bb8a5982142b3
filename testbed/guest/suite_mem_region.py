#!/usr/bin/python3
# lab: one-vm timeout=1200
# covers: rdma verbs arena fallback-udp node/src/kinds/memory
"""Everything that is tested for leases as memory windows, for leases as regions of their own. The short form has the
sections in which the two differ on the device."""
import mem_peers
import suite_mem_rdma as mem
from checks import length

mem.CYCLES = length(20, 5)
DIFFERENT = (mem.use, mem.several_queue_pairs, mem.two_arenas, mem.out_of_bounds, mem.rotation, mem.cut_after_fault, mem.zero_again,
             *mem_peers.SECTIONS, mem.cycles, mem.killed)

if __name__ == "__main__":
    mem.main("region", length(mem.SECTIONS, DIFFERENT))
