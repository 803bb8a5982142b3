//! A guest's disk that survives the boots of the guest.

use crate::job::{Job, Prelude};
use crate::lab::Layout;
use anyhow::{Context, Result};
use tempfile::NamedTempFile;

/// A raw image, all zeros and sparse at first. Dropping it removes the file.
#[derive(Debug)]
pub struct Disk(NamedTempFile);

impl Disk {
    /// An image of `bytes` in the lab's directory of this checkout.
    pub fn create(layout: &Layout, bytes: u64) -> Result<Self> {
        let directory = layout.lab();
        let image = tempfile::Builder::new()
            .prefix("disk-")
            .suffix(".raw")
            .tempfile_in(&directory)
            .with_context(|| format!("cannot make a disk image in {}", directory.display()))?;
        image
            .as_file()
            .set_len(bytes)
            .with_context(|| format!("cannot give {} {bytes} bytes", image.path().display()))?;
        Ok(Self(image))
    }

    /// Adds the image as the next disk of the job's guest: the first is `/dev/vda`.
    pub fn attach(&self, job: &mut Job) {
        job.vm.disks.push(self.0.path().to_owned());
        job.preludes.push(Prelude::Disk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_its_size_reaches_the_guest_and_goes() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
        std::fs::create_dir_all(layout.lab()).unwrap();
        let disk = Disk::create(&layout, 3 << 20).unwrap();
        let mut job = Job::new("t", &["true"]);
        disk.attach(&mut job);
        let image = job.vm.disks[0].clone();
        assert_eq!(std::fs::metadata(&image).unwrap().len(), 3 << 20);
        assert_eq!(job.preludes, [Prelude::Disk]);
        drop(disk);
        assert!(!image.exists());
    }
}
