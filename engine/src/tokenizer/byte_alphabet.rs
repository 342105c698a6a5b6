//! The printable character that stands for each byte in the vocabularies of byte-level BPE.
//!
//! Printable Latin-1 characters stand for themselves; the other bytes get the characters from U+0100 on, in order.
//! Source: `bytes_to_unicode` of GPT-2's `encoder.py` (the rule).

/// Whether `byte` is a printable Latin-1 character, which stands for itself.
const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The character of each byte.
const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let (mut byte, mut others) = (0, 0);
    while byte < 256 {
        chars[byte] = if stands_for_itself(byte as u8) {
            byte as u8 as char
        } else {
            others += 1;
            char::from_u32(0x100 + others - 1).expect("below the surrogates")
        };
        byte += 1;
    }
    chars
};

/// The characters after U+00FF in use: U+0100 up to here.
const LAST: char = '\u{143}';

/// The byte of each character up to `LAST`.
const BYTES: [Option<u8>; LAST as usize + 1] = {
    let mut bytes = [None; LAST as usize + 1];
    let mut byte = 0;
    while byte < 256 {
        bytes[CHARS[byte] as usize] = Some(byte as u8);
        byte += 1;
    }
    bytes
};

/// The character that stands for `byte`.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// Appends the bytes that `text` stands for; a text with other characters stands for itself.
pub(super) fn append_bytes(out: &mut Vec<u8>, text: &str) {
    let start = out.len();
    for c in text.chars() {
        match BYTES.get(c as usize).copied().flatten() {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_characters() {
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(b'a'), 'a');
        assert_eq!(char_of(0xad), LAST);
        let mut out = vec![];
        append_bytes(&mut out, "ĠâĤ¬");
        assert_eq!(out, " €".as_bytes());
    }

    #[test]
    fn every_byte_comes_back() {
        let text: String = (0..=255).map(char_of).collect();
        let mut out = vec![];
        append_bytes(&mut out, &text);
        assert_eq!(out, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn other_text_stands_for_itself() {
        let mut out = vec![];
        append_bytes(&mut out, "Ġ▁");
        assert_eq!(out, "Ġ▁".as_bytes());
    }
}
