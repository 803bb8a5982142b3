//! SR-IOV: a lease has a virtual function of a network card.
