//! SentencePiece's table of replacements (`tokenizer.ggml.precompiled_charsmap`), by which texts are normalised, e.g. to
//! NFKC.
//!
//! Layout: the size of the index in bytes as a little-endian u32; the index, a double array of u32 units whose node
//! numbers are combined by XOR; then the replacements, each ended by a zero byte. Of a unit, bits 10 to 30 are the base,
//! shifted left by eight more if bit 9 is set; bits 0 to 7 and 31 are compared with the byte that led here; bit 8 says
//! that a key ends here. The unit at the base of such a node holds the replacement's place in its lower 31 bits.
//!
//! Source: `llm_tokenizer_ugm_session` in llama.cpp's `llama-vocab.cpp`; S. Kanda, "Space- and Time-Efficient String
//! Dictionaries" (2018).

use super::error::VocabularyFault;

/// The replacements of a model.
pub(super) struct CharsMap {
    units: Box<[u32]>,
    replacements: Box<str>,
}

impl CharsMap {
    /// Reads the table. What its units point to is looked at only as texts need it: a place that is none is no match.
    pub(super) fn new(bytes: &[u8]) -> Result<Self, VocabularyFault> {
        let fault = |reason| VocabularyFault::CharsMap { reason };
        let (size, rest) = bytes.split_first_chunk().ok_or(fault("it has no size"))?;
        let size = u32::from_le_bytes(*size) as usize;
        let (index, replacements) =
            rest.split_at_checked(size).ok_or(fault("its index goes past its end"))?;
        let (units, []) = index.as_chunks() else { return Err(fault("its index is not of whole units")) };
        let replacements =
            std::str::from_utf8(replacements).map_err(|_| fault("its replacements are not UTF-8"))?;
        if !replacements.ends_with('\0') {
            return Err(fault("its last replacement does not end"));
        }
        let units = units.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        Ok(Self { units, replacements: replacements.into() })
    }

    /// Of the keys that `text` begins with the longest: its length in bytes, and what to put in its place.
    pub(super) fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let base = |unit: u32| (unit >> 10) << ((unit & 1 << 9) >> 6);
        let mut longest = None;
        let mut node = base(*self.units.first()?);
        for (i, byte) in text.bytes().enumerate() {
            node ^= u32::from(byte);
            let Some(&unit) = self.units.get(node as usize) else { break };
            if byte == 0 || unit & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            node ^= base(unit);
            if unit >> 8 & 1 == 1 {
                longest = self.units.get(node as usize).map(|value| (i + 1, value & !(1 << 31)));
            }
        }
        let (len, place) = longest?;
        let (replacement, _) = self.replacements.get(place as usize..)?.split_once('\0')?;
        text.is_char_boundary(len).then_some((len, replacement))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with one key of one byte.
    fn table(key: u8, replacements: &str) -> Vec<u8> {
        let mut units = [0u32; 512];
        units[0] = 256 << 10;
        // The node of the key, whose base leads to the unit 0x1ff, which holds the place 0.
        let node = 256 ^ usize::from(key);
        units[node] = (node as u32 ^ 0x1ff) << 10 | 1 << 8 | u32::from(key);
        let mut bytes = (4 * units.len() as u32).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(replacements.bytes());
        bytes
    }

    #[test]
    fn a_key_is_found_at_the_beginning_only() {
        let map = CharsMap::new(&table(b'x', "yz\0")).expect("a sound table");
        assert_eq!(map.longest("xa"), Some((1, "yz")));
        assert_eq!(map.longest("ax"), None);
        assert_eq!(map.longest(""), None);
    }

    #[test]
    fn tables_that_make_no_sense_are_refused() {
        let mut short = table(b'x', "\0");
        short.truncate(100);
        let cases: [(&[u8], &str); 5] = [
            (&[1, 2], "no size"),
            (&short, "past its end"),
            (&[1, 0, 0, 0, 9, 0], "whole units"),
            (&table(b'x', "a"), "does not end"),
            (&[0, 0, 0, 0, 0xff, 0], "not UTF-8"),
        ];
        for (bytes, message) in cases {
            let error = CharsMap::new(bytes).err().expect(message).to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
