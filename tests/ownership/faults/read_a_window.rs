//! While a peer may write to it, nobody reads it here.
fn look(window: basin::mem::Window) -> u8 {
    window.as_slice()[0]
}
fn main() {}
