//! Kernels and their results.

use fabricbios_wire::{GpuReply, GpuRequest, LeaseError, RefusalClass};
use stand_in_device::Knob;

use crate::{
    client::{launch, refused},
    vendors,
    worker::{FAULT, FILL, Lab, MATMUL, SESSION, VECTOR_ADD, Worker},
};

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|it| it.to_le_bytes()).collect()
}

#[test]
fn a_vector_is_added() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let a: Vec<f32> = (0..1000_u16).map(f32::from).collect();
        let b: Vec<f32> = a.iter().map(|it| it * 0.5).collect();
        let buffers: Vec<_> = (0..3).map(|_| client.allocate(4000)).collect();
        client.write(buffers[0].0, 0, &bytes(&a));
        client.write(buffers[1].0, 0, &bytes(&b));
        let module = client.load(&lab.module(VECTOR_ADD));
        let mut arguments: Vec<Vec<u8>> = buffers
            .iter()
            .map(|(_, address)| address.to_le_bytes().to_vec())
            .collect();
        arguments.push(1000_u32.to_le_bytes().to_vec());
        let mut launch = launch(module, "vector_add", (1, 1), &[]);
        (launch.grid[0], launch.block[0]) = (4, 256);
        launch.arguments = arguments;
        client.done(&GpuRequest::Launch(launch), &[]);
        client.sync();
        let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(client.read(buffers[2].0, 0, 4000), bytes(&sums));
        client.done(&GpuRequest::ModuleUnload { module }, &[]);
        let gone = client.ask(&GpuRequest::ModuleUnload { module });
        refused(
            &gone,
            LeaseError::NotFound,
            RefusalClass::Permanent,
            &["does not exist"],
        );
    }
}

#[test]
fn matrices_are_multiplied() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let n = 48_u32;
        let size = n as usize;
        let cells = || 0..size * size;
        let a: Vec<f32> = cells().map(|it| (it % 7) as f32).collect();
        let b: Vec<f32> = cells().map(|it| (it % 5) as f32 - 2.0).collect();
        let expected: Vec<f32> = cells()
            .map(|at| {
                (0..size)
                    .map(|k| a[at / size * size + k] * b[k * size + at % size])
                    .sum()
            })
            .collect();
        let length = n * n * 4;
        let buffers: Vec<_> = (0..3).map(|_| client.allocate(length.into())).collect();
        client.write(buffers[0].0, 0, &bytes(&a));
        client.write(buffers[1].0, 0, &bytes(&b));
        let module = client.load(&lab.module(MATMUL));
        let addresses: Vec<_> = buffers
            .iter()
            .map(|(_, address)| address.to_le_bytes())
            .collect();
        let arguments: [&[u8]; 4] = [
            &addresses[0],
            &addresses[1],
            &addresses[2],
            &n.to_le_bytes(),
        ];
        let launch = launch(module, "matmul_tiled", (n / 16, 16), &arguments);
        client.done(&GpuRequest::Launch(launch), &[]);
        // A read waits for earlier kernels.
        assert_eq!(client.read(buffers[2].0, 0, length), bytes(&expected));
    }
}

#[test]
fn a_launch_is_answered_before_its_kernel_ends() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let (mut one, mut other) = (worker.open(), worker.open());
        let (memory, address) = one.allocate(4096);
        let module = one.load(&lab.module(FILL));
        lab.directory.set(Knob::HangLaunch, "1").unwrap();
        let address = address.to_le_bytes();
        let arguments: [&[u8]; 3] = [
            &address,
            &0x5a5a_5a5a_u32.to_le_bytes(),
            &1024_u32.to_le_bytes(),
        ];
        let mut launch = launch(module, "fill", (1, 1), &arguments);
        launch.block[0] = 1024;
        one.done(&GpuRequest::Launch(launch), &[]);
        // The second queue continues meanwhile, even with the same buffer.
        let (second, _) = other.allocate(4096);
        other.write(second, 0, &[1; 4096]);
        other.sync();
        assert_eq!(other.read(second, 0, 4096), [1; 4096]);
        assert_eq!(other.read(memory, 0, 4), [0; 4]);
        let waits = one.send(
            &GpuRequest::Sync {
                whole_session: true,
            },
            &[],
        );
        assert_eq!(other.read(memory, 0, 4), [0; 4]);
        lab.directory.clear(Knob::HangLaunch).unwrap();
        assert_eq!(one.answer(&waits), Ok(GpuReply::Done));
        assert_eq!(other.read(memory, 0, 4096), [0x5a; 4096]);
    }
}

fn fault(lab: &Lab, worker: &Worker) {
    let (mut client, mut other) = (worker.open(), worker.open());
    let (memory, _) = client.allocate(4096);
    let module = client.load(&lab.module(FAULT));
    client.done(
        &GpuRequest::Launch(launch(module, "fault", (1, 1), &[])),
        &[],
    );
    let asked = client.send(
        &GpuRequest::Sync {
            whole_session: false,
        },
        &[],
    );
    let answer = client.answer(&asked);
    let session = SESSION.to_string();
    let says = [
        "a kernel of it failed",
        "700",
        session.as_str(),
        "open a new one",
    ];
    refused(
        &answer,
        LeaseError::InvalidArgs,
        RefusalClass::Permanent,
        &says,
    );
    client.ended();
    // The second queue had no unanswered request.
    other.ended();
    assert_eq!(worker.ended(), Some(3));
    // The worker did not wipe its memory, and does not claim it.
    assert_eq!(worker.wiped(), "");
    assert_ne!(memory, 0);
}

#[test]
fn a_kernel_that_faults_ends_its_own_session_only() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let (worker, neighbour) = (lab.worker(), lab.worker());
        let mut client = neighbour.open();
        let (memory, _) = client.allocate(4096);
        client.write(memory, 0, &[9; 4096]);
        fault(&lab, &worker);
        assert!(neighbour.is_there());
        assert_eq!(client.read(memory, 0, 4096), [9; 4096]);
        // A new session works.
        lab.worker().open().allocate(4096);
    }
}

#[test]
fn all_queues_hear_of_a_lost_device() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut clients = [worker.open(), worker.open()];
        lab.directory.set(Knob::HangLaunch, "1").unwrap();
        let sync = GpuRequest::Sync {
            whole_session: false,
        };
        let waiting = clients.each_mut().map(|client| {
            let (_, address) = client.allocate(4096);
            let module = client.load(&lab.module(FILL));
            let arguments: [&[u8]; 3] = [&address.to_le_bytes(), &[0; 4], &[0; 4]];
            let launch = launch(module, "fill", (1, 1), &arguments);
            client.done(&GpuRequest::Launch(launch), &[]);
            let asked = client.send(&sync, &[]);
            client.taken();
            asked
        });
        lab.directory.set(Knob::Gone, "1").unwrap();
        let uuid = lab.order().device.uuid;
        let says = ["is lost", uuid.as_str()];
        for (client, asked) in clients.iter_mut().zip(waiting) {
            let answer = client.answer(&asked);
            let (error, class) = (LeaseError::Unavailable, RefusalClass::Permanent);
            refused(&answer, error, class, &says);
            client.ended();
        }
        assert_eq!(worker.ended(), Some(3));
    }
}
