//! Kernel lists: `0-3,8,10-11`.

/// Largest number in a list. Linux knows at most 8192 CPUs and 1024 NUMA nodes.
const NUMBER_MAX: u32 = 0xFFFF;

/// The numbers of a list, ascending. Empty text is an empty list, as in the kernel. `None`: a number is repeated, out
/// of order or above 65535. So the result has at most 65536 numbers.
#[must_use]
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers: Vec<u32> = Vec::new();
    for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last || numbers.last().is_some_and(|&before| first <= before) {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|&number| digits && number <= NUMBER_MAX)
}
