//! Checks the outer format of a module. The driver parses the rest.

use fabricbios_wire::{GpuVendor, Refusal};

use super::refusal::invalid;

/// A cubin, and a code object of AMD.
const ELF: &[u8] = b"\x7fELF";
/// Several cubins and PTX in one file (`nvcc --fatbin`).
const FATBIN: &[u8] = &0xba55_ed50_u32.to_le_bytes();
/// Several code objects in one file (`clang-offload-bundler`).
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
/// A compressed bundle.
const COMPRESSED_BUNDLE: &[u8] = b"CCOB";
/// The first directive of PTX.
const VERSION: &str = ".version";

/// Checks that these bytes can be a module of this vendor.
pub(super) fn check(vendor: GpuVendor, image: &[u8]) -> Result<(), Refusal> {
    let begins = |with: &&[u8]| image.starts_with(with);
    let expected = match vendor {
        GpuVendor::Nvidia => {
            if [ELF, FATBIN].iter().any(begins) || is_ptx(image) {
                return Ok(());
            }
            "PTX (a text whose first directive is .version), a cubin or a fatbin"
        }
        GpuVendor::Amd => {
            if [ELF, BUNDLE, COMPRESSED_BUNDLE].iter().any(begins) {
                return Ok(());
            }
            "a code object (ELF) or a bundle of code objects"
        }
    };
    let first: String = image
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let length = image.len();
    Err(invalid(format_args!(
        "the module of {length} bytes is not {expected}: it begins with 0x{first}"
    )))
}

fn is_ptx(image: &[u8]) -> bool {
    let end = image
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    let Ok(text) = std::str::from_utf8(&image[..end]) else {
        return false;
    };
    let is_control = |it: char| it.is_ascii_control() && !it.is_ascii_whitespace();
    !text.contains(is_control) && after_comments(text).starts_with(VERSION)
}

fn after_comments(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        let (end, length) = match text.get(..2) {
            Some("//") => ("\n", 1),
            Some("/*") => ("*/", 2),
            _ => return text,
        };
        text = text.find(end).map_or("", |at| &text[at + length..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_known_by_their_beginning() {
        let nvidia: [&[u8]; 6] = [
            b".version 7.0\n.target sm_70",
            b"\n // K\xc3\xa4se .version\n /* .entry */\t.version 7.0\0\0",
            b"\x7fELF\x02\x01",
            &[0x50, 0xed, 0x55, 0xba, 1, 0],
            b"/**/.version 8.0",
            b".version 7.0\r\n.target sm_70 // \xc3\xbcber",
        ];
        for image in nvidia {
            assert_eq!(check(GpuVendor::Nvidia, image), Ok(()), "{image:?}");
        }
        for image in [
            &b"\x7fELF\x02"[..],
            b"__CLANG_OFFLOAD_BUNDLE__\0",
            b"CCOB\x01",
        ] {
            assert_eq!(check(GpuVendor::Amd, image), Ok(()), "{image:?}");
        }
        let neither: [&[u8]; 9] = [
            b"",
            b"\0",
            b"hello",
            b"// .version",
            b"/* .version",
            b".version\x01",
            b".version \0 x",
            b".version \xff",
            b"#!/bin/sh",
        ];
        for image in neither {
            for vendor in [GpuVendor::Nvidia, GpuVendor::Amd] {
                assert!(check(vendor, image).is_err(), "{image:?}");
            }
        }
        let refused = check(GpuVendor::Amd, b".version 7.0").unwrap_err().message;
        assert!(
            refused.contains("12 bytes") && refused.contains("0x2e76657273696f6e"),
            "{refused}"
        );
    }
}
