//! Wrong arguments of `gpu …`: each one is reported, and no request is sent.

use std::fs;

use crate::{LEASE_TEXT, fails, gpu::World, text_of};

#[test]
fn wrong_arguments_are_usage_and_ask_for_nothing() {
    let world = World::new();
    fs::write(world.path("empty"), "").unwrap();
    let lease = format!("--lease {LEASE_TEXT}");
    let kernel = "--ptx DIR/kernels.ptx --kernel k";
    for (line, part) in [
        (format!("run {kernel}"), "--lease"),
        (format!("run {lease} --vram 1MiB {kernel}"), "--vram"),
        (format!("run {lease} --secs 5 {kernel}"), "--secs"),
        (
            format!("run {lease} --exclusivity device {kernel}"),
            "--vram",
        ),
        (
            format!("run {lease} --execution-mode session {kernel}"),
            "--vram",
        ),
        (format!("run {lease} --compute-slices 1 {kernel}"), "--vram"),
        (
            format!("run {lease} --resource gpu0 {kernel}"),
            "--resource",
        ),
        (format!("run --vram 0 {kernel}"), "zero bytes"),
        (
            format!("run --vram 1 --exclusivity some {kernel}"),
            "GPU exclusivity class",
        ),
        (
            format!("run --vram 1 --execution-mode some {kernel}"),
            "GPU execution mode",
        ),
        (
            format!("run --vram 1 --compute-slices 0 {kernel}"),
            "from 1",
        ),
        (format!("run {lease} --kernel k"), "--ptx"),
        (format!("run {lease} --ptx DIR/kernels.ptx"), "--kernel"),
        (format!("run {lease} {kernel} --grid 0"), "one to three"),
        (
            format!("run {lease} {kernel} --block 1,2,3,4"),
            "one to three",
        ),
        (format!("run {lease} {kernel} --shared-bytes x"), "from 0"),
        (format!("run {lease} {kernel} --arg 5"), "u32:N"),
        (format!("run {lease} {kernel} --arg u32:-1"), "whole number"),
        (format!("run {lease} {kernel} --arg out:1"), "out:SIZE:FILE"),
        (
            format!("run {lease} {kernel} --arg in:DIR/none"),
            "DIR/none",
        ),
        (
            format!("run {lease} {kernel} --arg in:DIR/empty"),
            "is empty",
        ),
        (
            format!("run {lease} {kernel} --arg out:1:DIR/no/dir"),
            "DIR/no/dir",
        ),
        (format!("run {lease} --ptx DIR/none --kernel k"), "DIR/none"),
        ("close".to_owned(), "--lease"),
        ("close --lease x".to_owned(), "lease list"),
    ] {
        let (status, object) = fails(&world.node, &world.line(&format!("gpu {line}")));
        assert_eq!(
            (status, &object["error"]),
            (2, &"usage".into()),
            "{line}: {object}"
        );
        let message = object["message"].as_str().unwrap();
        assert!(
            message.contains(&world.line(part)),
            "{line}: {part} in {message}"
        );
    }
    assert!(world.node.asked().is_empty());
    assert!(world.node.gpu().opened().is_empty());
}

#[test]
fn negative_numbers_are_values_of_arguments() {
    let world = World::new();
    let line = format!(
        "gpu run --lease {LEASE_TEXT} --ptx DIR/kernels.ptx --kernel nothing --arg i32:-5 --arg f32:-1e3"
    );
    text_of(&world.node, &world.line(&line));
}

#[test]
fn the_help_says_what_an_argument_looks_like() {
    let world = World::new();
    let help = text_of(&world.node, "gpu run --help");
    for part in [
        "--ptx <FILE>",
        "inout:FILE:FILE2",
        "X[,Y[,Z]]",
        "--local-socket",
        "--exclusivity",
        "one_shot",
    ] {
        assert!(help.contains(part), "{part} in\n{help}");
    }
    for line in help.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    let all = text_of(&world.node, "gpu --help");
    for command in ["run", "close"] {
        assert!(all.contains(&format!("\n  {command} ")), "{all}");
    }
}
