//! The XML documents of S3: what requests carry and what answers say, each a plain struct that is read (`parse`) and written (`to_xml`).
//!
//! [`reader`] takes a body apart into a bounded tree, [`writer`] puts text behind text. Every document goes both ways: the server reads
//! requests and writes answers, the client the other way round. What requests carry is read strictly: an element that S3's schema does not
//! have there is `MalformedXML`, so that nothing is silently left undone. Of answers what is not known is passed over.
//!
//! Times are milliseconds since 1970 in UTC. ETags are held without the quotes that most documents write around them.

pub mod acl;
pub mod attributes;
pub mod buckets;
pub mod checksums;
pub mod cors;
pub mod delete;
pub mod failure;
pub mod lifecycle;
pub mod list;
pub mod lock;
pub mod multipart;
pub mod owner;
pub mod post;
pub mod reader;
pub mod session;
pub mod settings;
pub mod tagging;
pub mod writer;

#[cfg(test)]
mod tests;

use reader::Limits;

/// What a short document may measure. The longest has 50 tags of 384 characters, each of which may be a reference of 9.
const SHORT: Limits = Limits { bytes: 256 << 10, elements: 1024 };

/// An enumeration of S3: a value for each name.
pub trait Name: Copy + Sized + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// As S3 writes it.
    fn name(self) -> &'static str;

    /// The value of that name; S3's names are case-sensitive.
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.name() == name)
    }
}

/// An enumeration with the names S3 has for its values.
macro_rules! names {
    ($(#[$about:meta])* $name:ident { $($(#[$value_about:meta])* $value:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$value_about])* $value,)*
        }

        impl $crate::s3::xml::Name for $name {
            const ALL: &'static [$name] = &[$($name::$value),*];

            fn name(self) -> &'static str {
                match self {
                    $($name::$value => $text,)*
                }
            }
        }
    };
}
use names;
