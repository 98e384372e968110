//! AES-256 in counter mode: as many bytes as before, and any of them alone (NIST SP 800-38A, 6.5).

use aes::Aes256;
use aes::cipher::{InnerIvInit as _, KeyInit as _, StreamCipher as _, StreamCipherSeek as _};
use ctr::Ctr64BE;
use ctr::cipher::StreamCipherCoreWrapper;

use super::Nonce;

/// What encrypts and decrypts an object.
pub struct Cipher(Aes256);

impl Cipher {
    /// With an object's own key.
    pub fn new(key: &[u8; 32]) -> Cipher {
        Cipher(Aes256::new(key.into()))
    }

    /// The counter begins with the nonce, and counts blocks of 16 bytes in its second half: no object has so many.
    fn stream(&self, nonce: Nonce, at: u64) -> Ctr64BE<Aes256> {
        let mut counter = [0; 16];
        counter[..8].copy_from_slice(&nonce.to_be_bytes());
        let core = ctr::CtrCore::inner_iv_init(self.0.clone(), &counter.into());
        let mut stream = StreamCipherCoreWrapper::from_core(core);
        stream.seek(at);
        stream
    }

    /// Encrypts bytes where they lie, or decrypts them, which is the same. They are those from `at` on of the piece with this nonce.
    pub fn apply(&self, nonce: Nonce, at: u64, bytes: &mut [u8]) {
        self.stream(nonce, at).apply_keystream(bytes);
    }

    /// The same to another place.
    ///
    /// # Panics
    /// Where that is of another length.
    pub fn apply_to(&self, nonce: Nonce, at: u64, from: &[u8], to: &mut [u8]) {
        self.stream(nonce, at).apply_keystream_b2b(from, to).expect("both are of one length, and no object has as many blocks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NIST SP 800-38A, F.5.5: its counter is a nonce and a number of a block.
    #[test]
    fn the_vectors_of_nist() {
        let hex = |text: &str| base16ct::lower::decode_vec(text).unwrap();
        let key: [u8; 32] = hex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4").try_into().unwrap();
        let plain = hex(concat!(
            "6bc1bee22e409f96e93d7e117393172a",
            "ae2d8a571e03ac9c9eb76fac45af8e51",
            "30c81c46a35ce411e5fbc1191a0a52ef",
            "f69f2445df4f9b17ad2b417be66c3710"
        ));
        let sealed = hex(concat!(
            "601ec313775789a5b7a7f504bbf3d228",
            "f443e3ca4d62b59aca84e990cacaf5c5",
            "2b0930daa23de94ce87017ba2d84988d",
            "dfc9c58db67aada613c2dd08457941a6"
        ));
        let nonce = 0xf0f1_f2f3_f4f5_f6f7;
        // A counter of an object begins at 0; theirs does where the block with number f8f9fafbfcfdfeff is.
        let mut stream = Cipher::new(&key).stream(nonce, 0);
        let first = 0xf8f9_fafb_fcfd_feff_u64;
        assert!(stream.try_seek(u128::from(first) * 16).is_ok());
        let mut bytes = plain.clone();
        stream.apply_keystream(&mut bytes);
        assert_eq!(bytes, sealed);
    }

    #[test]
    fn any_part_alone_is_as_in_the_whole() {
        let cipher = Cipher::new(&[7; 32]);
        let plain: Vec<u8> = (0..1000u32).map(|at| at as u8).collect();
        let mut whole = plain.clone();
        cipher.apply(5, 0, &mut whole);
        assert_ne!(whole, plain);
        for (begins, ends) in [(0, 1000), (1, 2), (15, 17), (16, 32), (33, 999), (999, 1000), (500, 500)] {
            let mut part = vec![0; ends - begins];
            cipher.apply_to(5, begins as u64, &whole[begins..ends], &mut part);
            assert_eq!(part, plain[begins..ends], "{begins}..{ends}");
        }
        let mut other = plain.clone();
        cipher.apply(6, 0, &mut other);
        assert_ne!(other, whole, "of another nonce");
    }
}
