#!/usr/bin/python3
"""Who may have which VLAN and address, for the suites of network functions: the settings of their nodes, and a section of both."""
from checks import give_back
from fabric import REFUSED

OF_MAKER = "00:1b:21:00:00:07"
# Carol is not listed.
FLAGS = ("--net-vlan", "alice=0-4094", "--net-vlan", "bob=0,7", "--net-vlan", "bench=0,7", "--net-mac", f"bob={OF_MAKER}")


def rights(suite, node, alloc):
    """VLANs and addresses that the operator has not listed for a tenant are refused by policy, even beside a lease of
    the same VLAN. `alloc` leases for a tenant with these `vlan` and `mac`."""
    alice, bob, carol = (node.tenant(name) for name in ("alice", "bob", "carol"))
    held = [(alice, alloc(alice, vlan=vlan)) for vlan in (7, 42)]
    for name, tenant, more, words in (
            ("another tenant's VLAN", bob, {"vlan": 42}, ("vlan=42", "tenant bob", "may have 0,7", "net-vlan")),
            ("a VLAN that nobody has", bob, {"vlan": 8}, ("vlan=8", "may have 0,7")),
            ("a VLAN for a tenant that is not listed", carol, {"vlan": 7}, ("vlan=7", "tenant carol", "net-vlan carol=")),
            ("untagged frames for a tenant that is not listed", carol, {"vlan": None}, ("vlan=0", "tenant carol")),
            ("the address of a manufacturer", alice, {"vlan": 7, "mac": "00:1b:21:00:00:08"}, ("locally administered", "net-mac")),
            ("an address that is listed for another tenant", alice, {"vlan": 7, "mac": OF_MAKER}, ("net-mac",))):
        for word in words:
            suite.refused(f"{name}: refused, with {word}", lambda tenant=tenant, more=more: alloc(tenant, **more), REFUSED, word=word, of_class="policy")
    held.append((bob, alloc(bob, vlan=7, mac=OF_MAKER)))
    suite.equal("a VLAN that is listed for both, and an address that is listed", (7, OF_MAKER),
                tuple(held[-1][1]["binding"]["net"][it] for it in ("vlan", "mac")))
    for tenant, lease in held:
        give_back(tenant, lease)
