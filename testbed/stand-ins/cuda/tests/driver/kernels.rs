//! Modules, launches and streams.

use stand_in_device::Knob;

use super::{MIB, directory, free, kernel};
use crate::shell::{Shell, ptx};

/// Memory of the shell with these floats.
fn floats(shell: &mut Shell, floats: &[f32]) -> u64 {
    let address = shell.value(&format!("alloc {}", floats.len() * 4));
    let bytes = floats.iter().flat_map(|it| it.to_le_bytes());
    let bytes: Vec<String> = bytes.map(|it| it.to_string()).collect();
    shell.value(&format!("write {address} {}", bytes.join(" ")));
    address
}

fn read(shell: &mut Shell, address: u64, count: usize) -> Vec<f32> {
    let words = shell.words(&format!("floats {address} {}", count * 4));
    words.iter().map(|it| it.parse().unwrap()).collect()
}

#[test]
fn kernels_compute_what_their_ptx_says() {
    let (_place, directory) = directory();
    let mut shell = Shell::with_context(&directory);
    let add = kernel(&mut shell, "vector_add");
    let a = floats(&mut shell, &[1.0, 2.0, 3.0, 4.0, 5.0]);
    let b = floats(&mut shell, &[10.0; 5]);
    let c = floats(&mut shell, &[0.0; 5]);
    // 2 blocks of 2 threads: the fifth element has no thread.
    shell.value(&format!(
        "launch {add} 0 2,1,1 2,1,1 u64:{a} u64:{b} u64:{c} u32:5"
    ));
    assert_eq!(read(&mut shell, c, 5), [11.0, 12.0, 13.0, 14.0, 0.0]);
    let module = shell.value(&format!("load {}", ptx("fill").display()));
    assert_eq!(shell.code(&format!("function {module} vector_add")), 500);
    let fill = shell.value(&format!("function {module} fill"));
    let value = 2.5_f32.to_bits();
    // The three arguments are 8, 4 and 4 bytes: in one buffer, nothing is between them.
    shell.value(&format!(
        "launch {fill} 0 1,1,1 32,1,1 buffer u64:{c} u32:{value} u32:3"
    ));
    assert_eq!(read(&mut shell, c, 5), [2.5, 2.5, 2.5, 14.0, 0.0]);
    shell.value(&format!("unload {module}"));
    let again = format!("launch {fill} 0 1,1,1 32,1,1 u64:{c} u32:0 u32:1");
    assert_eq!(shell.code(&again), 400, "the module is unloaded");
}

#[test]
fn a_product_of_matrices() {
    const N: usize = 17;
    let (_place, directory) = directory();
    let mut shell = Shell::with_context(&directory);
    let product = kernel(&mut shell, "matmul_tiled");
    let a: Vec<f32> = (0..N * N).map(|it| (it % 7) as f32).collect();
    let b: Vec<f32> = (0..N * N).map(|it| (it % 5) as f32).collect();
    let element = |at: usize| -> f32 {
        let (row, column) = (at / N, at % N);
        (0..N)
            .map(|inner| a[row * N + inner] * b[inner * N + column])
            .sum()
    };
    let expected: Vec<f32> = (0..N * N).map(element).collect();
    let (a, b) = (floats(&mut shell, &a), floats(&mut shell, &b));
    let c = floats(&mut shell, &[0.0; N * N]);
    let arguments = format!("u64:{a} u64:{b} u64:{c} u32:{N}");
    assert_eq!(
        shell.code(&format!("launch {product} 0 2,2,1 8,8,1 {arguments}")),
        1
    );
    shell.value(&format!("launch {product} 0 2,2,1 16,16,1 {arguments}"));
    assert_eq!(read(&mut shell, c, N * N), expected);
}

#[test]
fn parameters_are_told() {
    let (_place, directory) = directory();
    let mut shell = Shell::with_context(&directory);
    let fill = kernel(&mut shell, "fill");
    for (index, expected) in [["0", "8"], ["8", "4"], ["12", "4"]].iter().enumerate() {
        assert_eq!(shell.words(&format!("parameter {fill} {index}")), expected);
    }
    assert_eq!(shell.code(&format!("parameter {fill} 3")), 1);
    assert_eq!(shell.code("parameter 7 0"), 400);
}

#[test]
fn absurd_launches_and_modules_are_refused_and_the_context_works_on() {
    let (place, directory) = directory();
    let mut shell = Shell::with_context(&directory);
    let fill = kernel(&mut shell, "fill");
    let p = shell.value("alloc 4096");
    for sizes in [
        "0,1,1 1,1,1",
        "1,1,1 1025,1,1",
        "1,65536,1 1,1,1",
        "1,1,1 1024,2,1",
    ] {
        let line = format!("launch {fill} 0 {sizes} u64:{p} u32:1 u32:1");
        assert_eq!(shell.code(&line), 1, "{sizes}");
    }
    assert_eq!(
        shell.code(&format!("launch {fill} 77 1,1,1 1,1,1 u64:{p} u32:1 u32:1")),
        400
    );
    assert_eq!(
        shell.code(&format!("launch {fill} 0 1,1,1 1,1,1 buffer u64:{p}")),
        1
    );
    for (text, code) in [
        ("hello", 218),
        ("\x7fELF", 200),
        (".version 7.0\n.target sm_70\n", 218),
    ] {
        let file = place.path().join("module");
        std::fs::write(&file, text).unwrap();
        assert_eq!(
            shell.code(&format!("load {}", file.display())),
            code,
            "{text}"
        );
    }
    assert_eq!(shell.code(&format!("fill {p} 0 4097")), 1, "past the end");
    shell.value(&format!("launch {fill} 0 1,1,1 1,1,1 u64:{p} u32:1 u32:1"));
    shell.value("sync");
}

#[test]
fn a_kernels_fault_stays_until_the_context_ends() {
    let (_place, directory) = directory();
    let memory = (16 * MIB).to_string();
    directory.set(Knob::Memory, &memory).unwrap();
    let mut other = Shell::with_context(&directory);
    let foreign = other.value("alloc 4096");
    let mut shell = Shell::start(&directory);
    shell.value("init");
    let context = shell.value("create");
    let fault = kernel(&mut shell, "fault");
    shell.value(&format!("launch {fault} 0 1,1,1 1,1,1"));
    assert_eq!(shell.code("sync"), 700);
    assert_eq!(shell.code("sync"), 700);
    assert_eq!(shell.code("alloc 4096"), 700);
    shell.value(&format!("destroy {context}"));

    shell.value("create");
    let past = kernel(&mut shell, "read_past");
    let p = shell.value("alloc 4096");
    shell.value(&format!(
        "launch {past} 0 1,1,1 1,1,1 u64:{p} u64:{p} u64:4092"
    ));
    shell.value("sync");
    shell.value(&format!(
        "launch {past} 0 1,1,1 1,1,1 u64:{p} u64:{p} u64:4096"
    ));
    assert_eq!(shell.code("sync"), 700);

    let mut third = Shell::with_context(&directory);
    let fill = kernel(&mut third, "fill");
    third.value(&format!(
        "launch {fill} 0 1,1,1 1,1,1 u64:{foreign} u32:1 u32:1"
    ));
    assert_eq!(third.code("sync"), 700, "another process's memory");
    other.value("sync");
}

#[test]
fn launches_are_asynchronous_and_streams_are_independent() {
    let (_place, directory) = directory();
    let mut shell = Shell::with_context(&directory);
    let spin = kernel(&mut shell, "spin");
    let (busy, idle) = (shell.value("stream 1"), shell.value("stream 1"));
    shell.value(&format!(
        "launch {spin} {busy} 1,1,1 1,1,1 u64:{}",
        u64::MAX
    ));
    assert_eq!(shell.code(&format!("query {busy}")), 600);
    let p = shell.value("alloc 4096");
    assert_eq!(
        shell.words(&format!("pinned-copy {p} {idle} 4096")),
        ["true"]
    );
    assert_eq!(shell.code(&format!("query {idle}")), 0);
    shell.value(&format!("end-stream {idle}"));
    assert_eq!(shell.code(&format!("query {idle}")), 400);
    shell.say("sync");
    shell.hangs();
    shell.kill();
    assert_eq!(free(&directory), 8 * MIB);
}

#[test]
fn the_default_stream_waits_for_the_others() {
    let (_place, directory) = directory();
    let mut shell = Shell::with_context(&directory);
    let spin = kernel(&mut shell, "spin");
    let fill = kernel(&mut shell, "fill");
    let p = shell.value("alloc 4096");
    let stream = shell.value("stream 0");
    shell.value(&format!("launch {spin} {stream} 1,1,1 1,1,1 u64:50000000"));
    shell.value(&format!(
        "launch {fill} {stream} 1,1,1 1,1,1 u64:{p} u32:7 u32:1"
    ));
    assert_eq!(shell.words(&format!("read {p} 4")), ["7", "0", "0", "0"]);
}

#[test]
fn all_ptx_of_this_directory_has_its_kernel() {
    let files = std::fs::read_dir(ptx("fill").parent().unwrap()).unwrap();
    let files: Vec<_> = files.map(|it| it.unwrap().path()).collect();
    assert_eq!(files.len(), 6, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let module = stand_in_device::Module::parse(&text).unwrap();
        let name = file.file_stem().unwrap().to_str().unwrap();
        let names: Vec<_> = module.entries.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, [name]);
        assert!(
            text.contains(".version 7.0") && text.contains(".target sm_70"),
            "{name}"
        );
    }
}
