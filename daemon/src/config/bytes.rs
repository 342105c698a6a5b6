//! Sizes in the configuration: a number of bytes, or a string such as `"512MiB"` or `"2 GB"`.

use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(super) u64);

/// A number of bytes that may be none at all, written as 0 or `"off"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(pub(super) ByteSize);

const UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

fn parse(text: &str) -> Option<ByteSize> {
    let (number, factor) = UNITS
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))
        .unwrap_or((text, 1));
    number.trim().parse::<u64>().ok()?.checked_mul(factor).map(ByteSize)
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| "a number of bytes or a size such as 512MiB works".to_owned())
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let size = if text == "off" { Some(ByteSize(0)) } else { parse(text) };
        size.map(Self).ok_or_else(|| "a number of bytes, a size such as 512MiB, or off works".to_owned())
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor { may_be_off: false })
    }
}

impl<'de> Deserialize<'de> for Budget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor { may_be_off: true }).map(Self)
    }
}

struct SizeVisitor {
    may_be_off: bool,
}

impl de::Visitor<'_> for SizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes or a size such as \"512MiB\"")?;
        if self.may_be_off { f.write_str(", or \"off\"") } else { Ok(()) }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<ByteSize, E> {
        let size =
            u64::try_from(value).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))?;
        Ok(ByteSize(size))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(value))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        let off = (self.may_be_off && text == "off").then_some(ByteSize(0));
        off.or_else(|| parse(text)).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse("512MiB"), Some(ByteSize(512 << 20)));
        assert_eq!(parse("2 GB"), Some(ByteSize(2_000_000_000)));
        assert_eq!(parse("17"), Some(ByteSize(17)));
        assert_eq!(parse("17B"), Some(ByteSize(17)));
        for wrong in ["", "MiB", "-1", "1.5GiB", "99999999999GiB", "5 parsecs"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
        assert_eq!("off".parse(), Ok(Budget(ByteSize(0))));
        assert!("off".parse::<ByteSize>().is_err());
    }
}
