//! Opens the compiled programs of `bpf/`.

use libbpf_rs::{ObjectBuilder, OpenObject, PrintLevel};

/// A compiled program, aligned, because libelf reads 64-bit fields in place.
#[repr(align(8))]
pub struct Object<T: ?Sized>(pub T);

/// Opens a program. What libbpf has to say goes to the log: the error that it returns says what failed.
///
/// # Errors
/// The object is damaged, or there is no memory.
pub fn open(name: &str, object: &'static Object<[u8]>) -> libbpf_rs::Result<OpenObject> {
    libbpf_rs::set_print(Some((PrintLevel::Info, |_, line| tracing::debug!("{}", line.trim_end()))));
    ObjectBuilder::default().name(name)?.open_memory(&object.0)
}
