//! Lists of numbers as the kernel writes them, such as `0-3,8`: short texts must not become long lists.
//! Mount tables, which can contain any user's directory names.
#![no_main]

use fabricbios_kernfs::{parse_list, parse_mounts};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let lines = bytes.split(|&byte| byte == b'\n').count();
    assert!(parse_mounts(bytes).len() <= lines);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Some(numbers) = parse_list(text) {
        assert!(numbers.is_sorted_by(|before, after| before < after));
        assert!(numbers.len() <= 1 << 16);
    }
});
