//! Leases as exports of the kernel's own NVMe target, used by a client: nvme-cli and the kernel's host.
//!
//! Changes the kernel's target, and needs root, device-mapper and the modules. In the lab: `FABRICBIOS_LAB=1 nvmet
//! --ignored --test-threads=1`. Elsewhere these tests are ignored.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod nvmet_lab;

use std::{fs, path::Path, process::Command, sync::Arc, thread, time::Instant};

use fabricbios_lease::BindError;
use fabricbios_nvmet::{Export, STEPS, Target};
use fabricbios_wire::{BlockTerms, LeaseId, NvmeofTransport, Transport};
use nvmet_lab::{
    CONFIGFS, HostFiles, Lab, binding_id,
    client::{Busy, WRONG_KEY, connect, connect_with, disconnect, refused},
    end, export, must, picture, ports, run, supervisor, tcp, transport,
};

const CHILD: &str = "FABRICBIOS_LAB_CHILD";

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn only_the_right_host_with_the_right_key_connects_on_every_transport() {
    let lab = Lab::open();
    let target = lab.target();
    let volume = lab.volume("v1");
    let binding = target.publish(&export(1, &volume)).unwrap();
    println!(
        "{} transports: {:?}",
        binding.addresses.len(),
        binding.addresses
    );
    assert_eq!(binding.addresses.len(), ports().len());
    for transport in 0..binding.addresses.len() {
        let disk = connect(&binding, transport).unwrap();
        must(&format!(
            "dd if={disk} of=/dev/null bs=4k count=4 iflag=direct"
        ));
        let size = fs::read_to_string(disk.replace("/dev", "/sys/block") + "/size").unwrap();
        assert_eq!(size.trim(), "65536");
        disconnect(&binding);
        let host = binding.host_nqn.as_str();
        let wrong = format!("--dhchap-secret {WRONG_KEY}");
        // Over RDMA a client's kernel takes minutes to report that its key is wrong.
        if binding.addresses[transport].transport == NvmeofTransport::Tcp {
            refused(|| connect_with(&binding, transport, host, &wrong));
        }
        connect_with(&binding, transport, host, "").unwrap_err();
        let right = format!("--dhchap-secret {}", binding.dhchap_secret.reveal());
        connect_with(&binding, transport, "nqn.2020-01.org.example:other", &right).unwrap_err();
    }
    end(&target, 1);
    connect(&binding, 0).unwrap_err();
    volume.remove();
    lab.close(target);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn both_ends_prove_themselves_where_that_was_asked_for() {
    let lab = Lab::open();
    let target = lab.target();
    let volume = lab.volume("v1");
    let mut export = export(1, &volume);
    export.terms.mutual_auth = true;
    let mut binding = target.publish(&export).unwrap();
    let transport = transport(&binding, NvmeofTransport::Tcp, false);
    connect(&binding, transport).unwrap();
    disconnect(&binding);
    binding.dhchap_ctrl_secret = fabricbios_wire::DhchapSecret::new(WRONG_KEY);
    refused(|| connect(&binding, transport));
    end(&target, 1);
    volume.remove();
    lab.close(target);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn a_cut_ends_running_io_on_every_transport_and_a_neighbour_goes_on() {
    let lab = Lab::open();
    let target = lab.target();
    let [first, second] = ["v1", "v2"].map(|name| lab.volume(name));
    for (lease, port) in (10..).zip(0..ports().len()) {
        let neighbour = target.publish(&export(2, &second)).unwrap();
        let mut kept = Busy::write(&connect(&neighbour, 0).unwrap());
        let binding = target.publish(&export(lease, &first)).unwrap();
        let busy = Busy::write(&connect(&binding, port).unwrap());
        let started = Instant::now();
        let proof = target.cut(binding_id(lease, 1)).unwrap().to_string();
        println!(
            "{:?}: cut in {:?}: {proof}",
            binding.addresses[port],
            started.elapsed()
        );
        busy.fails();
        kept.goes_on();
        let unlinked = format!("unlink from {} ports ", ports().len());
        assert!(proof.starts_with(&unlinked), "{proof}");
        let refused = proof
            .matches("Connect refused with status 0x4182 by ")
            .count();
        assert_eq!(refused, ports().len(), "{proof}");
        assert!(!proof.contains("cannot be asked"), "{proof}");
        let again = target.cut(binding_id(lease, 1)).unwrap().to_string();
        assert!(
            again.starts_with("unlink from 0 ports ") && again.contains("Connect refused"),
            "{again}"
        );
        assert!(matches!(
            target.publish(&export(lease, &first)),
            Err(BindError::Cancelled)
        ));
        target.remove(LeaseId(lease), &|| ()).unwrap();
        target.remove(LeaseId(lease), &|| ()).unwrap();
        kept.goes_on();
        kept.stop();
        disconnect(&neighbour);
    }
    end(&target, 2);
    first.remove();
    second.remove();
    lab.close(target);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn a_stuck_device_delays_neither_its_cut_nor_other_leases_and_its_removal_is_given_up() {
    let lab = Lab::open();
    let target = lab.target();
    let [stuck, other] = ["v1", "v2"].map(|name| lab.volume(name));
    let binding = target.publish(&export(1, &stuck)).unwrap();
    let transport = transport(&binding, NvmeofTransport::Tcp, false);
    let busy = Busy::write(&connect(&binding, transport).unwrap());
    stuck.suspend();
    // The write must be in progress when the lease is cut; otherwise nothing is stuck.
    while !run("ps -C dd -o stat=").is_ok_and(|states| states.contains('D')) {
        thread::yield_now();
    }
    let started = Instant::now();
    let proof = target.cut(binding_id(1, 1)).unwrap();
    println!(
        "cut over a stuck device in {:?}: {proof}",
        started.elapsed()
    );
    busy.fails();
    thread::scope(|scope| {
        let removal = scope.spawn(|| target.remove(LeaseId(1), &|| ()).unwrap_err());
        while run("pgrep -x fb-rmdir").is_err() {
            thread::yield_now();
        }
        let neighbour = target.publish(&export(2, &other)).unwrap();
        connect(&neighbour, 0).unwrap();
        end(&target, 2);
        assert!(
            !removal.is_finished(),
            "the other lease did not wait for it"
        );
        let error = removal.join().unwrap().to_string();
        println!("{error}");
        assert!(
            error.contains("/dev/mapper/v1") && error.contains("process"),
            "{error}"
        );
    });
    let error = target.remove(LeaseId(1), &|| ()).unwrap_err().to_string();
    assert!(error.contains("earlier try"), "{error}");
    // Another run of the node does not know the process, but finds it.
    let later = lab.target();
    let error = later.remove(LeaseId(1), &|| ()).unwrap_err().to_string();
    assert!(error.contains("earlier try"), "{error}");
    // The processes of the later tries end when they are killed.
    while must("pgrep -x fb-rmdir").lines().count() > 1 {
        thread::yield_now();
    }
    stuck.resume();
    target.remove(LeaseId(1), &|| ()).unwrap();
    stuck.remove();
    other.remove();
    drop(later);
    let target = lab.target();
    lab.close(target);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn a_device_that_is_stuck_before_the_export_holds_up_nobody() {
    let lab = Lab::open();
    let target = lab.target();
    let [stuck, other] = ["v1", "v2"].map(|name| lab.volume(name));
    stuck.suspend();
    thread::scope(|scope| {
        let publishing = scope.spawn(|| target.publish(&export(1, &stuck)).unwrap_err());
        while run("pgrep -x fb-read").is_err() {
            thread::yield_now();
        }
        target.publish(&export(2, &other)).unwrap();
        end(&target, 2);
        assert!(
            !publishing.is_finished(),
            "the other lease did not wait for it"
        );
        let error = publishing.join().unwrap();
        assert!(matches!(error, BindError::Stranded(_)), "{error:?}");
    });
    stuck.resume();
    assert_eq!(target.leases().unwrap(), []);
    while run("pgrep -x fb-read").is_ok() {
        thread::yield_now();
    }
    stuck.remove();
    other.remove();
    lab.close(target);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn new_keys_are_for_the_next_connection_and_leave_the_live_one_alone() {
    let lab = Lab::open();
    let target = lab.target();
    let volume = lab.volume("v1");
    let old = target.publish(&export(1, &volume)).unwrap();
    let transport = transport(&old, NvmeofTransport::Tcp, false);
    let mut busy = Busy::write(&connect(&old, transport).unwrap());
    let new = target.rekey(binding_id(1, 1)).unwrap();
    assert_ne!(new.dhchap_secret, old.dhchap_secret);
    busy.goes_on();
    busy.stop();
    disconnect(&old);
    refused(|| connect(&old, transport));
    connect(&new, transport).unwrap();
    end(&target, 1);
    volume.remove();
    lab.close(target);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn a_host_of_a_tenant_is_shared_and_one_of_somebody_else_is_refused() {
    let lab = Lab::open();
    let target = lab.target();
    let [first, second] = ["v1", "v2"].map(|name| lab.volume(name));
    let host = "nqn.2014-08.org.nvmexpress:uuid:3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b";
    let named = |lease, volume| Export {
        terms: BlockTerms {
            host_nqn: Some(host.parse().unwrap()),
            ..BlockTerms::default()
        },
        ..export(lease, volume)
    };
    let one = target.publish(&named(1, &first)).unwrap();
    let two = target.publish(&named(2, &second)).unwrap();
    assert_eq!(one.dhchap_secret, two.dhchap_secret);
    connect(&one, 0).unwrap();
    let mut busy = Busy::write(&connect(&two, 0).unwrap());
    let theirs = Export {
        tenant: "bob".into(),
        ..named(3, &second)
    };
    assert!(matches!(
        target.publish(&theirs),
        Err(BindError::Refused(_))
    ));
    assert!(matches!(
        target.rekey(binding_id(1, 1)),
        Err(BindError::Refused(_))
    ));
    end(&target, 1);
    busy.goes_on();
    end(&target, 2);
    busy.fails();
    must(&format!("mkdir {CONFIGFS}/hosts/{host}"));
    assert!(matches!(
        target.publish(&named(4, &first)),
        Err(BindError::Refused(_))
    ));
    must(&format!("rmdir {CONFIGFS}/hosts/{host}"));
    first.remove();
    second.remove();
    lab.close(target);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn what_others_have_made_is_left_alone_and_their_address_is_not_taken() {
    let lab = Lab::open();
    must(&format!(
        "mkdir {CONFIGFS}/subsystems/nqn.2020-01.org.example:theirs {CONFIGFS}/ports/1"
    ));
    let port = Path::new(CONFIGFS).join("ports/1");
    for (name, value) in [
        ("trtype", "tcp"),
        ("adrfam", "ipv4"),
        ("traddr", "127.0.0.1"),
        ("trsvcid", "4430"),
    ] {
        fs::write(port.join(format!("addr_{name}")), value).unwrap();
    }
    let theirs = Path::new(CONFIGFS).join("subsystems/nqn.2020-01.org.example:theirs");
    let link = port.join("subsystems/nqn.2020-01.org.example:theirs");
    std::os::unix::fs::symlink(&theirs, &link).unwrap();
    let before = picture();
    let error = Target::open(lab.config(&[tcp("127.0.0.1:4430")])).unwrap_err();
    assert!(
        error.to_string().contains("ports/1") && error.to_string().contains(":theirs"),
        "{error}"
    );
    assert_eq!(picture(), before);
    let target = lab.target();
    let volume = lab.volume("v1");
    target.publish(&export(1, &volume)).unwrap();
    end(&target, 1);
    volume.remove();
    target.close().unwrap();
    assert_eq!(picture(), before);
    fs::remove_file(link).unwrap();
    fs::remove_dir(theirs).unwrap();
    fs::remove_dir(port).unwrap();
    let target = lab.target();
    lab.close(target);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn a_taken_address_is_refused_and_one_to_come_is_waited_for() {
    let lab = Lab::open();
    let before = picture();
    let taken = std::net::TcpListener::bind("127.0.0.1:4440").unwrap();
    let error = Target::open(lab.config(&[tcp("127.0.0.1:4440")])).unwrap_err();
    assert!(error.to_string().contains("ss -ltnp"), "{error}");
    assert_eq!(picture(), before);
    drop(taken);
    let target = Target::open(lab.config(&[tcp("10.99.0.1:4420")])).unwrap();
    assert_eq!(target.transports(), [Transport::NvmeTcp]);
    let volume = lab.volume("v1");
    let early = target.publish(&export(1, &volume)).unwrap_err();
    assert!(matches!(early, BindError::Failed(_)), "{early:?}");
    must("ip address add 10.99.0.1/32 dev lo");
    let binding = loop {
        match target.publish(&export(2, &volume)) {
            Ok(binding) => break binding,
            Err(_) => thread::yield_now(),
        }
    };
    connect(&binding, 0).unwrap();
    end(&target, 2);
    volume.remove();
    lab.close(target);
    must("ip address del 10.99.0.1/32 dev lo");
}

/// The binding names the addresses, so the lease stays on them. A later lease has all addresses.
#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn a_port_that_joins_late_is_for_later_leases() {
    let lab = Lab::open();
    let settings = [tcp("127.0.0.1:4420"), tcp("10.99.0.1:4420")];
    let target = Target::open(lab.config(&settings)).unwrap();
    let [first, second] = ["v1", "v2"].map(|name| lab.volume(name));
    let early = target.publish(&export(1, &first)).unwrap();
    assert_eq!(early.addresses.len(), 1);
    must("ip address add 10.99.0.1/32 dev lo");
    let late = loop {
        let binding = target.publish(&export(2, &second)).unwrap();
        if binding.addresses.len() == 2 {
            break binding;
        }
        thread::yield_now();
    };
    connect(&late, 1).unwrap();
    disconnect(&late);
    let renewed = target.rekey(binding_id(1, 1)).unwrap();
    assert_eq!(renewed.addresses, early.addresses);
    connect(&renewed, 0).unwrap();
    end(&target, 2);
    end(&target, 1);
    first.remove();
    second.remove();
    lab.close(target);
    must("ip address del 10.99.0.1/32 dev lo");
}

/// All leases end at one moment, some of them under I/O. All unlinks come before the proofs.
#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn many_leases_that_end_together_are_all_cut_before_the_first_is_proved() {
    let lab = Lab::open();
    let target = lab.target();
    let volume = lab.volume("v1");
    let bindings: Vec<_> = (1..=16)
        .map(|lease| target.publish(&export(lease, &volume)).unwrap())
        .collect();
    let transport = transport(&bindings[0], NvmeofTransport::Tcp, false);
    let busy = [0, 15].map(|at| Busy::write(&connect(&bindings[at], transport).unwrap()));
    thread::scope(|scope| {
        let revoking: Vec<_> = (1..=16)
            .map(|lease| {
                scope.spawn({
                    let target = &target;
                    move || target.revoke(binding_id(lease, 1)).unwrap()
                })
            })
            .collect();
        let revoked = revoking.into_iter().map(|it| it.join().unwrap());
        let revoked: Vec<_> = revoked.collect();
        let linked = |at: &&str| at.contains("/subsystems/") && !at.contains("anchor");
        let picture = picture();
        let linked: Vec<&str> = picture.lines().filter(linked).collect();
        assert_eq!(linked, Vec::<&str>::new());
        busy.into_iter().for_each(Busy::fails);
        let verifying: Vec<_> = (1..=16)
            .zip(revoked)
            .map(|(lease, revoked)| {
                scope.spawn({
                    let target = &target;
                    // Half of the proofs have no `revoked`, as after a crash between revoke and verify.
                    let revoked = Some(revoked).filter(|_| lease > 8);
                    move || {
                        target
                            .verify(binding_id(lease, 1), revoked.as_ref())
                            .unwrap()
                    }
                })
            })
            .collect();
        for proof in verifying.into_iter().map(|it| it.join().unwrap()) {
            println!("{proof}");
            assert!(
                proof
                    .to_string()
                    .contains("Connect refused with status 0x4182"),
                "{proof}"
            );
        }
    });
    (1..=16).for_each(|lease| target.remove(LeaseId(lease), &|| ()).unwrap());
    volume.remove();
    lab.close(target);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn a_death_behind_any_step_leaves_nothing_that_the_next_run_cannot_remove() {
    let lab = Lab::open();
    let volume = lab.volume("v1");
    let mut died = 0;
    let records = lab.place.path().join("hosts");
    // A short run tests some of the steps.
    let stride = if std::env::var_os("FABRICBIOS_FULL").is_some() {
        1
    } else {
        12
    };
    let steps = STEPS.iter().step_by(stride);
    // When the process dies, the records of hosts may be on disk or not.
    for (step, is_recorded) in steps.flat_map(|step| [(step, true), (step, false)]) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lives_one_life_as_a_child", "--include-ignored"])
            .env(CHILD, lab.place.path())
            .env("FABRICBIOS_DIE_AFTER", step)
            .output()
            .unwrap();
        assert!(
            !child.status.success(),
            "nobody died after {step}: {child:?}"
        );
        died += 1;
        if !is_recorded {
            fs::remove_dir_all(&records).unwrap();
        }
        let target = lab.target();
        target.remove_unrecorded_hosts().unwrap();
        for lease in target.leases().unwrap() {
            assert_eq!(lease, LeaseId(1), "{step}");
            target.cut(binding_id(1, 1)).unwrap();
            target.remove(lease, &|| ()).unwrap();
        }
        target.close().unwrap();
    }
    println!("{died} deaths");
    volume.remove();
    let target = lab.target();
    lab.close(target);
}

/// The part of the child process; does nothing in the parent.
#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]
fn lives_one_life_as_a_child() {
    let Some(place) = std::env::var_os(CHILD) else {
        return;
    };
    let files = HostFiles::in_place(Path::new(&place));
    let config = fabricbios_nvmet::TargetConfig {
        configfs: CONFIGFS.into(),
        ports: ports(),
        hosts: files.read(),
        host_records: Arc::new(files),
        node_id: fabricbios_wire::NodeId([0x5A; 32]),
        supervisor: supervisor(Path::new(&place)),
    };
    let target = Target::open(config).unwrap();
    let export = Export {
        binding_id: binding_id(1, 1),
        tenant: "ann".into(),
        terms: BlockTerms {
            mutual_auth: true,
            ..BlockTerms::default()
        },
        volume: "/dev/mapper/v1".into(),
        block_bytes: 512,
        transport: Transport::Both,
        grace: std::time::Duration::ZERO,
    };
    target.publish(&export).unwrap();
    target.rekey(binding_id(1, 1)).unwrap();
    target.cut(binding_id(1, 1)).unwrap();
    target.remove(LeaseId(1), &|| ()).unwrap();
    target.close().unwrap();
}
