//! Refused requests; the stream continues after each.

use std::{fs, os::unix::fs::PermissionsExt};

use fabricbios_wire::{GpuReply, GpuRequest, GpuVendor, LeaseError, RefusalClass};

use crate::{
    client::{Answer, launch, refused, write},
    vendors,
    worker::{FILL, Lab, SESSION, SPIN, VRAM, Worker, libraries},
};

fn invalid(answer: &Answer, says: &[&str]) {
    refused(
        answer,
        LeaseError::InvalidArgs,
        RefusalClass::Permanent,
        says,
    );
}

fn unknown(answer: &Answer, says: &[&str]) {
    refused(answer, LeaseError::NotFound, RefusalClass::Permanent, says);
}

#[test]
fn handles_of_others_are_refused() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let (memory, _) = client.allocate(4096);
        let module = client.load(&lab.module(FILL));
        assert_eq!(memory >> 32, SESSION & 0xffff_ffff);
        // A handle of another session, a handle that never existed, and a handle of the other kind.
        let foreign = memory ^ (1 << 40);
        let session = SESSION.to_string();
        for (handle, says) in [
            (foreign, "of another session"),
            (memory + 100, "does not exist"),
            (module, "does not exist"),
        ] {
            let shown = format!("{handle:#x}");
            let says = [says, shown.as_str()];
            unknown(&client.ask(&GpuRequest::MemFree { memory: handle }), &says);
            let read = GpuRequest::MemRead {
                memory: handle,
                offset: 0,
                length: 1,
            };
            unknown(&client.ask(&read), &says);
            unknown(&client.ask_with(&write(handle, 0, 9), &[0; 9]), &says);
        }
        unknown(
            &client.ask(&GpuRequest::MemFree { memory: foreign }),
            &[session.as_str()],
        );
        for handle in [module ^ (1 << 40), module + 100, memory] {
            unknown(
                &client.ask(&GpuRequest::ModuleUnload { module: handle }),
                &[],
            );
            unknown(
                &client.ask(&GpuRequest::Launch(launch(handle, "fill", (1, 1), &[]))),
                &[],
            );
        }
        assert_eq!(client.read(memory, 0, 1), [0]);
    }
}

#[test]
fn the_cap_holds() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let (mut client, mut other) = (worker.open(), worker.open());
        // Large buffers take multiples of 2 MiB.
        let (memory, _) = client.allocate(VRAM - (3 << 20));
        other.allocate((1 << 20) + 1);
        let cap = VRAM.to_string();
        let more = |answer: &Answer, class| {
            refused(answer, LeaseError::CapacityExceeded, class, &[cap.as_str()]);
        };
        more(
            &client.ask(&GpuRequest::MemAlloc { bytes: 1 }),
            RefusalClass::Transient,
        );
        more(
            &client.ask(&GpuRequest::MemAlloc { bytes: VRAM + 1 }),
            RefusalClass::Permanent,
        );
        more(
            &client.ask(&GpuRequest::MemAlloc { bytes: u64::MAX }),
            RefusalClass::Permanent,
        );
        client.done(&GpuRequest::MemFree { memory }, &[]);
        client.allocate(VRAM - (3 << 20));
        // A lease with more memory than the device has free.
        let mut order = lab.order();
        order.vram_bytes = 1 << 40;
        let worker = lab.start(&order);
        let answer = worker.open().ask(&GpuRequest::MemAlloc { bytes: 1 << 39 });
        let says = ["memory", order.device.uuid.as_str()];
        refused(
            &answer,
            LeaseError::CapacityExceeded,
            RefusalClass::Transient,
            &says,
        );
    }
}

/// The stand-ins' devices have 14 multiprocessors of 2,048 threads.
#[test]
fn variables_of_kernels_are_memory_of_the_lease() {
    let module = |bytes: u32| {
        format!(
            ".version 7.0\n.target sm_70\n.entry large {{ .local .align 8 .b8 x[{bytes}]; ret; }}\n"
        )
    };
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let mut launches = |bytes: u32| {
            let module = client.load(&lab.module(&module(bytes)));
            client.ask(&GpuRequest::Launch(launch(module, "large", (1, 1), &[])))
        };
        let takes = 3072 * 14 * 2048;
        let says = ["4096 bytes of variables", &format!("{takes} bytes")];
        let (exceeded, permanent) = (LeaseError::CapacityExceeded, RefusalClass::Permanent);
        refused(&launches(4096), exceeded, permanent, &says);
        assert_eq!(launches(1024 + 256), Ok(GpuReply::Done));
        // The rest of the memory is available for buffers, and no more.
        let taken = 256 * 14 * 2048;
        client.allocate(VRAM - taken - (2 << 20));
        let more = client.ask(&GpuRequest::MemAlloc { bytes: 4 << 20 });
        refused(&more, exceeded, RefusalClass::Transient, &[]);
    }
}

#[test]
fn copies_stay_within_their_buffer() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let (memory, _) = client.allocate(4096);
        client.write(memory, 4095, &[7]);
        for (offset, length) in [
            (0, 4097),
            (4096, 1),
            (4095, 2),
            (u64::MAX, 1),
            (u64::MAX - 1, 4),
        ] {
            let offset_says = format!("offset {offset}");
            let says = ["4096 bytes", offset_says.as_str()];
            let read = GpuRequest::MemRead {
                memory,
                offset,
                length,
            };
            invalid(&client.ask(&read), &says);
            let data = vec![1; length.try_into().unwrap()];
            invalid(
                &client.ask_with(&write(memory, offset, data.len()), &data),
                &says,
            );
        }
        let mut expected = vec![0; 4096];
        expected[4095] = 7;
        assert_eq!(client.read(memory, 0, 4096), expected);
    }
}

#[test]
fn what_is_no_module_is_refused() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        for bytes in [&b"hello"[..], b"\0", b"// .version 7.0", &[0xff; 70_000]] {
            invalid(&client.try_load(bytes), &["is not", "begins with"]);
        }
        let other = match vendor {
            GpuVendor::Nvidia => b"__CLANG_OFFLOAD_BUNDLE__".to_vec(),
            GpuVendor::Amd => FILL.into(),
        };
        invalid(&client.try_load(&other), &["is not"]);
        // These bytes pass the worker's check; the driver rejects them.
        let broken = match vendor {
            GpuVendor::Nvidia => b".version 7.0\n.entry fill(".to_vec(),
            GpuVendor::Amd => b"\x7fELF, and no more".to_vec(),
        };
        let uuid = lab.order().device.uuid;
        invalid(
            &client.try_load(&broken),
            &[uuid.as_str(), "ModuleLoadData"],
        );
        client.load(&lab.module(FILL));
    }
}

#[test]
fn launches_that_cannot_be_are_refused() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let (memory, address) = client.allocate(4096);
        let module = client.load(&lab.module(FILL));
        let address = address.to_le_bytes();
        let arguments: [&[u8]; 3] = [&address, &[1; 4], &1024_u32.to_le_bytes()];
        let good = launch(module, "fill", (1, 1), &arguments);
        let with = |change: &dyn Fn(&mut fabricbios_wire::GpuLaunch)| {
            let mut launch = good.clone();
            change(&mut launch);
            GpuRequest::Launch(launch)
        };
        let missing = client.ask(&with(&|it| it.kernel = "fil".into()));
        unknown(&missing, &["\"fil\"", "500"]);
        invalid(
            &client.ask(&with(&|it| it.grid[1] = 65_536)),
            &["grid.y is 65536"],
        );
        invalid(&client.ask(&with(&|it| it.grid[0] = 0)), &["grid.x is 0"]);
        invalid(
            &client.ask(&with(&|it| it.block = [32, 33, 1])),
            &["1056 threads"],
        );
        // Only the driver knows the device's limit of shared memory.
        let shared = client.ask(&with(&|it| it.shared_bytes = 1 << 30));
        invalid(&shared, &["shared_bytes 1073741824", "\"fill\""]);
        if vendor == GpuVendor::Nvidia {
            // HIP cannot report the parameters of a kernel.
            let few = client.ask(&with(&|it| drop(it.arguments.pop())));
            invalid(&few, &["takes 3 arguments, and 2 were given"]);
            let many = client.ask(&with(&|it| it.arguments.push(vec![0])));
            invalid(&many, &["takes 3 arguments, and 4 were given"]);
            let short = client.ask(&with(&|it| it.arguments[0].truncate(4)));
            invalid(
                &short,
                &["argument 1 of 3", "has 8 bytes, and 4 were given"],
            );
        }
        client.sync();
        assert_eq!(client.read(memory, 0, 4096), [0; 4096]);
        client.done(&with(&|it| it.block[0] = 1024), &[]);
        assert_eq!(client.read(memory, 0, 4096), [1; 4096]);
    }
}

#[test]
fn arguments_that_are_missing_are_zero() {
    // Only HIP cannot report the number of parameters.
    for vendor in vendors().into_iter().filter(|it| *it == GpuVendor::Amd) {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let module = client.load(&lab.module(SPIN));
        // The kernel spins for zero cycles.
        client.done(
            &GpuRequest::Launch(launch(module, "spin", (1, 1), &[])),
            &[],
        );
        client.sync();
    }
}

#[test]
fn a_worker_that_cannot_begin_says_why() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let mut order = lab.order();
        order.libraries.cuda = vec!["/nowhere/libcuda.so.1".into()];
        order.libraries.hip.clone_from(&order.libraries.cuda);
        let (worker, answer) = Worker::start(&lab, &order);
        let why = answer.unwrap_err();
        assert!(why.contains("/nowhere/libcuda.so.1"), "{why}");
        assert_eq!(worker.ended(), Some(1));
        order.libraries = libraries();
        order.device.uuid = "GPU-00000000-0000-0000-0000-000000000000".into();
        let (worker, answer) = Worker::start(&lab, &order);
        let why = answer.unwrap_err();
        assert!(why.contains("no visible device is GPU-0000"), "{why}");
        assert_eq!(worker.ended(), Some(1));
        // The worker's user opens the device, not root.
        let only_root = fs::Permissions::from_mode(0o700);
        fs::set_permissions(lab.directory.path(), only_root).unwrap();
        let (worker, answer) = Worker::start(&lab, &lab.order());
        let why = answer.unwrap_err();
        assert!(why.contains("no context can be opened"), "{why}");
        assert_eq!(worker.ended(), Some(1));
    }
}

#[test]
fn a_worker_without_a_user_of_its_own_does_not_serve() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let mut order = lab.order();
        order.uid = 0;
        let (worker, answer) = Worker::start(&lab, &order);
        let why = answer.unwrap_err();
        assert!(why.contains("no user of its own"), "{why}");
        assert_eq!(worker.ended(), Some(1));
    }
}

#[test]
fn a_vendor_that_is_not_built_in_is_named() {
    let all = [GpuVendor::Nvidia, GpuVendor::Amd];
    for vendor in all.into_iter().filter(|it| !vendors().contains(it)) {
        let lab = Lab::new(vendor);
        let (worker, answer) = Worker::start(&lab, &lab.order());
        let why = answer.unwrap_err();
        assert!(why.contains("built without the feature gpu-"), "{why}");
        assert_eq!(worker.ended(), Some(1));
    }
}
