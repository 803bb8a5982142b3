//! Writes the golden vectors under `testbed/vectors/v0/`:
//! `cargo run -p fabricbios-wire --example vectors`.

mod cases;
mod data_plane;
mod samples;

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed/vectors/v0");
    fs::create_dir_all(&folder)?;
    remove_old(&folder)?;
    let cases = cases::all();
    for case in &cases {
        fs::write(folder.join(case.file_name()), case.file())?;
    }
    println!("{} vectors in testbed/vectors/v0", cases.len());
    Ok(())
}

/// Removes the files of all cases first, so that a removed case leaves none.
fn remove_old(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "hex") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
