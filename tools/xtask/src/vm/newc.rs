//! The initramfs archive: cpio in the "newc" format (kernel: Documentation/driver-api/early-userspace/buffer-format.rst).

/// An archive in memory.
pub struct Archive {
    bytes: Vec<u8>,
    /// The next inode number.
    inode: u32,
}

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;

impl Archive {
    pub fn new() -> Archive {
        Archive { bytes: Vec::new(), inode: 1 }
    }

    /// Adds a directory; its parent must have been added before.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, 2, &[]);
    }

    /// Adds a regular file with the permission bits `mode`.
    pub fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, FILE | mode, 1, content);
    }

    /// The whole archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, 1, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, links: u32, content: &[u8]) {
        let size = u32::try_from(content.len()).expect("a file of an initramfs has less than 4 GiB");
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
        self.inode += 1;
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_laid_out_as_the_kernel_reads_it() {
        let mut archive = Archive::new();
        archive.file("init", 0o755, b"hello");
        let bytes = archive.finish();
        // 110 bytes of header, "init\0" and one byte of padding, five of content and three of padding.
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[6..14], b"00000001");
        assert_eq!(&bytes[14..22], b"000081ed");
        assert_eq!(&bytes[54..62], b"00000005", "the size");
        assert_eq!(&bytes[94..102], b"00000005", "the name with its end");
        assert_eq!(&bytes[110..116], b"init\0\0");
        assert_eq!(&bytes[116..124], b"hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert!(bytes[124..].windows(10).any(|part| part == b"TRAILER!!!"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
