//! A step of a cut fails: the error names the step, the bytes stay withheld, and only a remediation with a proof gives
//! them back.

use fabricbios_lease::{BindError, BindingId, Extent, Linger, StepError};

use crate::lab::{Lab, PAGE, RESOURCE, binding_id, client, kernel_objects, pages, pattern};

/// Cuts lease 1 while `faults` are planned. Returns the step that the error names.
pub(crate) fn failed_cut(lab: &Lab, faults: &[&'static str]) -> String {
    lab.fail_next(faults);
    let error = lab
        .backend
        .cut(binding_id(1, 1), Linger::Brief)
        .unwrap_err();
    println!("{error}");
    error.step.name().to_owned()
}

/// Checks that a failed cut of a live lease withholds the bytes until a reset has verified the end of access.
pub(crate) fn fails_then_recovers(faults: &[&'static str], step: &str) {
    let lab = Lab::open();
    let before = kernel_objects();
    let extent = pages(0, 2);
    let (mut tenant, rdma) = lab.grant(1, extent);
    tenant
        .write(
            rdma.rkey.unwrap(),
            rdma.remote_addr,
            &pattern(PAGE as usize),
        )
        .unwrap();
    assert_eq!(failed_cut(&lab, faults), step);
    assert!(
        tenant
            .write(rdma.rkey.unwrap(), rdma.remote_addr, &[1])
            .is_err()
    );
    assert!(
        lab.backend
            .release(binding_id(1, 1), extent, &|| ())
            .is_err(),
        "released without proof"
    );
    let next = lab.bind(binding_id(2, 1), extent, None);
    assert!(matches!(next, Err(BindError::Failed(_))), "{next:?}");
    assert!(
        lab.bytes(pages(0, 1)).iter().all(|byte| *byte != 0),
        "scrubbed too early"
    );

    reset(&lab, binding_id(1, 1), extent).unwrap();
    assert!(lab.bytes(extent).iter().all(|byte| *byte == 0));
    tenant.close().unwrap();
    assert_eq!(kernel_objects(), before);
    lab.bind(binding_id(2, 1), extent, None).unwrap();
    lab.cut_and_release(binding_id(2, 1), extent);
    lab.close();
}

/// The remediation of one lease.
fn reset(lab: &Lab, binding_id: BindingId, extent: Extent) -> Result<(), StepError> {
    lab.backend.reset(RESOURCE, &[(binding_id, extent.into())])
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_queue_pair_that_the_kernel_does_not_confirm_gone_fails_the_cut() {
    fails_then_recovers(&["restrack"], "restrack");
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_reset_that_fails_leaves_everything_withheld() {
    let lab = Lab::open();
    let (client, _) = lab.grant(1, pages(0, 1));
    assert_eq!(
        failed_cut(&lab, &["destroy_qp", "destroy_qp"]),
        "destroy_qp"
    );
    assert_eq!(
        reset(&lab, binding_id(1, 1), pages(0, 1))
            .unwrap_err()
            .step
            .name(),
        "destroy_qp"
    );
    assert!(
        lab.backend
            .release(binding_id(1, 1), pages(0, 1), &|| ())
            .is_err()
    );
    reset(&lab, binding_id(1, 1), pages(0, 1)).unwrap();
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_new_binding_over_one_that_cannot_be_cut_is_stranded_and_others_go_on() {
    let lab = Lab::open();
    let (first, _) = lab.grant(1, pages(0, 1));
    let (mut other, other_rdma) = lab.grant(2, pages(1, 1));
    let second = client();
    lab.fail_next(&["destroy_qp"]);
    let stranded = lab.bind(binding_id(1, 2), pages(0, 1), Some(second.peer()));
    assert!(
        matches!(stranded, Err(BindError::Stranded(_))),
        "{stranded:?}"
    );
    other
        .write(other_rdma.rkey.unwrap(), other_rdma.remote_addr, &[1])
        .unwrap();
    reset(&lab, binding_id(1, 2), pages(0, 1)).unwrap();
    other
        .write(other_rdma.rkey.unwrap(), other_rdma.remote_addr, &[2])
        .unwrap();
    lab.cut_and_release(binding_id(2, 1), pages(1, 1));
    for client in [first, second, other] {
        client.close().unwrap();
    }
    lab.close();
}
