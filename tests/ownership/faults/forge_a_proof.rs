//! Nobody outside the crate can claim that a peer's grant is gone.
fn main() {
    let _proof = basin::mem::Revoked::new(7, 1);
}
