//! Checks the size of a launch, and its arguments.

use fabricbios_wire::{GpuLaunch, GpuVendor, Refusal};

use super::refusal::invalid;

/// Most blocks of a grid, in each dimension.
const GRID_MAX: [u32; 3] = [i32::MAX.cast_unsigned(), 65_535, 65_535];
/// Most threads of a block.
const THREADS_MAX: u32 = 1024;
const DIMENSIONS: [char; 3] = ['x', 'y', 'z'];

/// Checks the sizes against the limits of this vendor's devices. The driver checks the limits of this device.
pub(super) fn check_shape(vendor: GpuVendor, launch: &GpuLaunch) -> Result<(), Refusal> {
    let block_max = match vendor {
        GpuVendor::Nvidia => [THREADS_MAX, THREADS_MAX, 64],
        GpuVendor::Amd => [THREADS_MAX; 3],
    };
    for (name, sizes, most) in [
        ("grid", launch.grid, GRID_MAX),
        ("block", launch.block, block_max),
    ] {
        for ((size, most), dimension) in sizes.into_iter().zip(most).zip(DIMENSIONS) {
            if !(1..=most).contains(&size) {
                let why = format!("{name}.{dimension} is {size}; 1 to {most} are possible");
                return Err(invalid(why));
            }
        }
    }
    let threads: u64 = launch.block.iter().copied().map(u64::from).product();
    if threads > u64::from(THREADS_MAX) {
        let [x, y, z] = launch.block;
        return Err(invalid(format_args!(
            "block has {x} x {y} x {z} = {threads} threads; at most {THREADS_MAX} are possible"
        )));
    }
    Ok(())
}

/// Checks number and sizes of the arguments, if the driver reports those of the kernel's parameters.
pub(super) fn check_arguments(
    launch: &GpuLaunch,
    parameters: Option<&[usize]>,
) -> Result<(), Refusal> {
    let Some(parameters) = parameters else {
        return Ok(());
    };
    let (kernel, given) = (&launch.kernel, launch.arguments.len());
    if given != parameters.len() {
        let takes = parameters.len();
        return Err(invalid(format_args!(
            "kernel {kernel:?} takes {takes} arguments, and {given} were given"
        )));
    }
    let mut pairs = launch.arguments.iter().zip(parameters).enumerate();
    match pairs.find(|(_, (argument, bytes))| argument.len() != **bytes) {
        None => Ok(()),
        Some((index, (argument, bytes))) => Err(invalid(format_args!(
            "argument {} of {given} of kernel {kernel:?} has {bytes} bytes, and {} were given",
            index + 1,
            argument.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(grid: [u32; 3], block: [u32; 3]) -> GpuLaunch {
        GpuLaunch {
            module: 1,
            kernel: "k".into(),
            grid,
            block,
            shared_bytes: 0,
            arguments: vec![vec![0; 8], vec![0; 4]],
        }
    }

    #[test]
    fn the_field_that_is_absurd_is_named() {
        let check = |grid, block| check_shape(GpuVendor::Nvidia, &launch(grid, block));
        assert_eq!(check([i32::MAX as u32, 65535, 65535], [32, 32, 1]), Ok(()));
        let absurd = [
            ([0, 1, 1], [1; 3], "grid.x is 0"),
            (
                [u32::MAX, 1, 1],
                [1; 3],
                "grid.x is 4294967295; 1 to 2147483647",
            ),
            ([1, 65536, 1], [1; 3], "grid.y is 65536"),
            ([1, 1, 65536], [1; 3], "grid.z is 65536"),
            ([1; 3], [1025, 1, 1], "block.x is 1025"),
            ([1; 3], [1, 0, 1], "block.y is 0"),
            ([1; 3], [1, 1, 65], "block.z is 65; 1 to 64"),
            ([1; 3], [1024, 1024, 64], "= 67108864 threads"),
            ([1; 3], [32, 33, 1], "= 1056 threads"),
        ];
        for (grid, block, expected) in absurd {
            let refused = check(grid, block).unwrap_err().message;
            assert!(refused.contains(expected), "{refused}");
        }
        assert_eq!(
            check_shape(GpuVendor::Amd, &launch([1; 3], [1, 1, 65])),
            Ok(())
        );
    }

    #[test]
    fn arguments_are_as_many_and_as_long_as_the_parameters() {
        let launch = launch([1; 3], [1; 3]);
        let check = |parameters: &[usize]| check_arguments(&launch, Some(parameters));
        assert_eq!(check(&[8, 4]), Ok(()));
        assert_eq!(check_arguments(&launch, None), Ok(()));
        for (parameters, expected) in [
            (&[8][..], "takes 1 arguments, and 2 were given"),
            (&[], "takes 0"),
            (&[8, 4, 4], "takes 3"),
            (
                &[8, 8],
                "argument 2 of 2 of kernel \"k\" has 8 bytes, and 4 were given",
            ),
        ] {
            let refused = check(parameters).unwrap_err().message;
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
