//! Loop devices, over a file of their own or over another block device. They go with their handles.

#![allow(dead_code, reason = "each test program uses its part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A directory on the disk the build lies on: there O_DIRECT reaches a disk.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Runs a program; the reason as text when it cannot.
pub fn tool(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(format!("{program}: {}", text(&output.stderr))) }
}

/// A loop device.
pub struct Loop {
    pub device: PathBuf,
    pub backing: PathBuf,
    /// Of its own file.
    directory: Option<tempfile::TempDir>,
}

impl Loop {
    /// Over a file of its own, which `prepare` fills before it is attached.
    pub fn new(bytes: u64, prepare: impl FnOnce(&Path)) -> Result<Loop, String> {
        let directory = directory();
        let backing = directory.path().join("medium");
        fs::File::create(&backing).and_then(|file| file.set_len(bytes)).unwrap();
        prepare(&backing);
        let mut attached = Loop::over(&backing, &["--partscan", "--direct-io=on"])?;
        attached.directory = Some(directory);
        Ok(attached)
    }

    /// Over a file or a block device that is there, with these options of losetup.
    pub fn over(backing: &Path, options: &[&str]) -> Result<Loop, String> {
        let device = tool("losetup", &[&["--find", "--show"], options, &[backing.to_str().unwrap()]].concat())?;
        Ok(Loop { device: device.into(), backing: backing.to_owned(), directory: None })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.device.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = tool("losetup", &["--detach", self.name()]);
    }
}

/// A small mounted file system.
pub struct SmallFs {
    point: tempfile::TempDir,
    _device: Option<Loop>,
}

impl SmallFs {
    /// With ext4, of so many bytes.
    pub fn new(bytes: u64) -> Result<SmallFs, String> {
        let device = Loop::new(bytes, |_| ())?;
        tool("mkfs.ext4", &["-q", device.name()])?;
        let point = directory();
        tool("mount", &[device.name(), point.path().to_str().unwrap()])?;
        Ok(SmallFs { point, _device: Some(device) })
    }

    /// In memory, of so many bytes.
    pub fn in_memory(bytes: u64) -> Result<SmallFs, String> {
        let point = directory();
        tool("mount", &["-t", "tmpfs", "-o", &format!("size={bytes}"), "none", point.path().to_str().unwrap()])?;
        Ok(SmallFs { point, _device: None })
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        let point = self.point.path().to_str().unwrap();
        // The kernel closes the files of an io_uring a while after it.
        for _ in 0..100 {
            if tool("umount", &[point]).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = tool("umount", &["--lazy", point]);
    }
}
