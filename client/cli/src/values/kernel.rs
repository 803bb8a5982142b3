//! The arguments of a kernel on the command line, and its grid.

use std::{path::PathBuf, str::FromStr};

use super::{BadValue, size};

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KernelArgument {
    U32(u32),
    U64(u64),
    I32(i32),
    F32(f32),
    F64(f64),
    /// Memory with the contents of a file.
    Input(PathBuf),
    /// Memory of this many bytes; its contents become the file.
    Output(u64, PathBuf),
    /// Memory with the contents of the first file, which become the second.
    InOut(PathBuf, PathBuf),
    /// Memory of this many zero bytes.
    Zero(u64),
}

const FORMS: &str = "write u32:N, u64:N, i32:N, f32:X, f64:X, in:FILE, out:SIZE:FILE, inout:FILE:FILE2 or zero:SIZE";

/// An argument, by its form.
pub(crate) fn kernel_argument(text: &str) -> Result<KernelArgument, BadValue> {
    let (form, value) = text.split_once(':').ok_or(FORMS)?;
    Ok(match form {
        "u32" => KernelArgument::U32(whole(value, u32::MAX)?),
        "u64" => KernelArgument::U64(whole(value, u64::MAX)?),
        "i32" => KernelArgument::I32(number(value, "a whole number of 32 bits")?),
        "f32" => KernelArgument::F32(number(value, "a number such as 1.5")?),
        "f64" => KernelArgument::F64(number(value, "a number such as 1.5")?),
        "in" => KernelArgument::Input(file(value)?),
        "out" => {
            let (bytes, path) = two(value, "out:SIZE:FILE")?;
            KernelArgument::Output(size(bytes)?, file(path)?)
        }
        "inout" => {
            let (from, into) = two(value, "inout:FILE:FILE2")?;
            KernelArgument::InOut(file(from)?, file(into)?)
        }
        "zero" => KernelArgument::Zero(size(value)?),
        _ => return Err(FORMS.into()),
    })
}

/// Blocks or threads: x, then y and z, which are 1 if not given.
pub(crate) fn dimensions(text: &str) -> Result<[u32; 3], BadValue> {
    let mut all = [1; 3];
    let mut places = all.iter_mut();
    for part in text.split(',') {
        let number = part.parse().ok().filter(|number| *number != 0);
        let (Some(place), Some(number)) = (places.next(), number) else {
            return Err(format!(
                "write one to three whole numbers from 1 to {}, with commas between",
                u32::MAX
            )
            .into());
        };
        *place = number;
    }
    Ok(all)
}

/// Decimal or 0x.
fn whole<T: TryFrom<u64> + ToString>(text: &str, max: T) -> Result<T, BadValue> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.ok().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| {
        let max = max.to_string();
        format!("{text:?} is no whole number, decimal or 0x, of at most {max}").into()
    })
}

fn number<T: FromStr>(text: &str, wanted: &str) -> Result<T, BadValue> {
    let number = text.parse().ok();
    number.ok_or_else(|| format!("{text:?} is not {wanted}").into())
}

fn two<'a>(text: &'a str, form: &str) -> Result<(&'a str, &'a str), BadValue> {
    text.split_once(':')
        .ok_or_else(|| format!("write {form}").into())
}

fn file(text: &str) -> Result<PathBuf, BadValue> {
    match text {
        "" => Err("the name of a file is missing".into()),
        path => Ok(path.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_argument() {
        use KernelArgument as A;
        for (text, expected) in [
            ("u32:5", A::U32(5)),
            ("u32:0xffffffff", A::U32(u32::MAX)),
            ("u64:18446744073709551615", A::U64(u64::MAX)),
            ("i32:-7", A::I32(-7)),
            ("f32:1.5", A::F32(1.5)),
            ("f64:-1e300", A::F64(-1e300)),
            ("in:a/b:c", A::Input("a/b:c".into())),
            ("out:4KiB:/tmp/x:y", A::Output(4096, "/tmp/x:y".into())),
            ("inout:a:b:c", A::InOut("a".into(), "b:c".into())),
            ("zero:1M", A::Zero(1 << 20)),
        ] {
            assert_eq!(kernel_argument(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_argument_is_told_what_would_be_one() {
        for (text, part) in [
            ("", "u32:N"),
            ("5", "u32:N"),
            ("f16:1", "u32:N"),
            ("u32:4294967296", "at most 4294967295"),
            ("u32:-1", "at most 4294967295"),
            ("u64:1.5", "whole number"),
            ("i32:2147483648", "32 bits"),
            ("f32:x", "1.5"),
            ("in:", "file is missing"),
            ("out:FILE", "out:SIZE:FILE"),
            ("out:0:FILE", "zero bytes"),
            ("out:1:", "file is missing"),
            ("inout:a", "inout:FILE:FILE2"),
            ("inout::b", "file is missing"),
            ("zero:0", "zero bytes"),
        ] {
            let error = kernel_argument(text).unwrap_err();
            assert!(error.0.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn dimensions_are_one_to_three() {
        assert_eq!(dimensions("7"), Ok([7, 1, 1]));
        assert_eq!(dimensions("7,8"), Ok([7, 8, 1]));
        assert_eq!(dimensions("7,8,9"), Ok([7, 8, 9]));
        for text in ["", "0", "1,0", "1,2,3,4", "1,", "x", "4294967296", "-1"] {
            let error = dimensions(text).unwrap_err();
            assert!(error.0.contains("one to three"), "{text}: {error}");
        }
    }
}
